// Decoders of the Llama kind: rotary positions, rms_norm, gated MLPs. A family says in which of these details its
// models differ.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/model_folder/model_config.h"
#include "engine/model_folder/model_job.h"

namespace trainctl {

/// The experts of the blocks. `count` 0: each block has a gated MLP.
struct Experts {
  int64_t count = 0, top_k = 0, hidden = 0;
  bool normalizes = true;         ///< the weights of a token's experts are divided by their sum
  double scale = 1;               ///< factor of these weights
  bool has_sigmoids = false;      ///< scores are sigmoids
  bool has_balance_bias = false;  ///< a bias counts when experts are chosen
  bool has_biases = false;        ///< the products of experts and router have biases
  std::string activation = "swiglu";
  int64_t groups = 1, top_groups = 1;
  int64_t shared_hidden = 0;  ///< hidden features of the shared expert; 0: none
  int64_t dense_blocks = 0;   ///< number of blocks, the first ones, that have a gated MLP instead
};

/// Multi-head latent attention (DeepSeek): keys and values are products with a narrow latent row. `kv_rank` 0: q, k and
/// v are products with the row itself.
struct LatentAttention {
  int64_t q_rank = 0;                          ///< width of the latent row of q; 0: none
  int64_t kv_rank = 0;                         ///< width of the latent row of k and v
  int64_t nope = 0, rope = 0, v_head_dim = 0;  ///< features of a head of q and k, without and with rotation; of v
};

struct Decoder {
  std::string title;
  std::string map = "llama";
  int64_t layers = 0, heads = 0, kv_heads = 0, head_dim = 0, width = 0, hidden = 0, vocab = 0, positions = 0;
  double eps = 1e-6;
  std::string activation = "silu";  ///< activation of the gate: a type of layer, and fields
  bool qkv_bias = false, proj_bias = false, mlp_bias = false;
  bool head_norms = false;       ///< each head of q and k is normalized
  bool qk_norms = false;         ///< q and k are normalized, all heads together
  bool norms_after = false;      ///< norms also follow attention and MLP
  bool norms_from_zero = false;  ///< weights of norms are stored minus 1
  bool has_sinks = false;        ///< attention has sinks
  double dropout = 0;            ///< dropout of attention weights
  bool is_tied = false;
  Experts experts{};
  LatentAttention latent{};
  double embedding_scale = 1;
  double score_scale = 0;                       ///< 0: 1 / sqrt(head_dim)
  double score_softcap = 0, logit_softcap = 0;  ///< 0: none
  std::vector<int64_t> windows{};               ///< window of each layer; 0: none
  std::string rotary{};                         ///< fields of rotary: ", base: 10000.0"
  std::string local_rotary{};                   ///< the same for layers with a window, if they differ
  bool reads_documents = false;                 ///< rows contain several documents
};

/// The fields that almost all of these families share. `config` also has those that only some have.
/// `allows_quantization`: the family checks quantization_config itself.
Decoder read_decoder(const ModelConfig& config, bool allows_quantization = false);
/// The fields of rotary for rope_theta and rope_scaling, or for rope_parameters. `kind`: of layers, if they differ.
/// Refuses partial_rotary_factor, which transformers reads only in models of Phi-3, unless `allows_partial`.
std::string read_rotary(const ModelConfig& config, int64_t head_dim, const std::string& kind = "",
                        bool allows_partial = false);
/// The window of each layer, by layer_types, or else of those for which has_window(layer) is true.
std::vector<int64_t> read_windows(const ModelConfig& config, int64_t layers, bool (*has_window)(int64_t layer));

ModelJob decoder_job(Decoder decoder, const Finetune& tuning);

}  // namespace trainctl
