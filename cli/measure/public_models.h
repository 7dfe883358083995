// The sizes of well-known language models, as their published configurations state them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trainctl {

struct PublicModel {
  std::string_view name;  ///< "llama-8b"
  std::string_view title;
  int layers = 0;
  int64_t width = 0;                     ///< hidden size (d_model)
  int64_t heads = 0, kv_heads = 0;       ///< attention heads, and the key and value heads that they share
  int64_t key_size = 0, value_size = 0;  ///< features per head of queries and keys, and of values
  int64_t hidden = 0;                    ///< features inside the MLP (d_ff)
  int64_t vocab = 0;
  bool is_gated = true;  ///< RMSNorm and a gated MLP (three matrix products, as SwiGLU); false: LayerNorm and a
                         ///< two-product MLP, as in GPT-2
  int64_t experts = 0, top_k = 0;  ///< experts per layer and experts per token; 0: a dense MLP
};

std::span<const PublicModel> public_models();
/// Returns null if no model has this name.
const PublicModel* find_public_model(std::string_view name);

/// A kernel call of a model's training step.
struct ModelOp {
  std::string part;           ///< "products", "experts", "attention", "norms", "loss"
  std::string what;           ///< "q, k, v: gradient of the weights"
  std::string op;             ///< KernelDef::name
  std::string shapes, attrs;  ///< in the form of `trainctl bench op`
  int calls = 1;              ///< per step
};

/// The products, experts, attention, norms and the loss of a step of `samples` rows of `length` tokens.
std::vector<ModelOp> model_ops(const PublicModel& model, int64_t samples, int64_t length);

}  // namespace trainctl
