// How families of decoders differ from each other: what their classes in transformers compute.
#include <algorithm>
#include <cmath>

#include "engine/model_folder/decoder.h"
#include "engine/model_folder/families.h"

namespace trainctl {
namespace {

/// Also SmolLM, and every model whose config.json has model_type llama.
Decoder llama(const ModelConfig& config) {
  Decoder d = read_decoder(config);
  d.title = "Llama";
  d.qkv_bias = d.proj_bias = config.flag("attention_bias", false);
  d.mlp_bias = config.flag("mlp_bias", false);
  d.rotary = read_rotary(config, d.head_dim);
  return d;
}

/// The window of all layers with use_sliding_window, of those from max_window_layers on.
void read_qwen_windows(const ModelConfig& config, Decoder& d) {
  const bool used = config.flag("use_sliding_window", false);
  const int64_t first = config.integer("max_window_layers", 0);
  d.windows = read_windows(config, d.layers, [](int64_t) { return true; });
  for (int64_t i = 0; i < d.layers; ++i)
    if (!used || (!config.has("layer_types") && i < first)) d.windows[static_cast<size_t>(i)] = 0;
}

Decoder gemma(const ModelConfig& config) {
  Decoder d = read_decoder(config);
  d.map = "gemma";
  d.norms_after = d.norms_from_zero = true;
  d.is_tied = config.flag("tie_word_embeddings", true);
  d.qkv_bias = d.proj_bias = config.flag("attention_bias", false);
  d.embedding_scale = std::sqrt(static_cast<float>(d.width));
  d.score_scale = 1 / std::sqrt(config.number("query_pre_attn_scalar", static_cast<double>(d.head_dim)));
  d.score_softcap = config.number("attn_logit_softcapping", 0);
  d.logit_softcap = config.number("final_logit_softcapping", 0);
  config.refuse_if_set({"use_bidirectional_attention"});
  return d;
}

}  // namespace

ModelJob llama_job(const ModelConfig& config, const Finetune& tuning) { return decoder_job(llama(config), tuning); }

ModelJob mistral_job(const ModelConfig& config, const Finetune& tuning) {
  Decoder d = llama(config);
  d.title = "Mistral";
  d.windows = read_windows(config, d.layers, [](int64_t) { return true; });
  return decoder_job(d, tuning);
}

ModelJob qwen2_job(const ModelConfig& config, const Finetune& tuning) {
  Decoder d = read_decoder(config);
  d.title = "Qwen2";
  d.qkv_bias = true;
  d.rotary = read_rotary(config, d.head_dim);
  read_qwen_windows(config, d);
  return decoder_job(d, tuning);
}

ModelJob qwen3_job(const ModelConfig& config, const Finetune& tuning) {
  Decoder d = llama(config);
  d.title = "Qwen3";
  d.head_norms = true;
  read_qwen_windows(config, d);
  return decoder_job(d, tuning);
}

namespace {

/// The fields of a router that all of these families share.
void read_experts(const ModelConfig& config, Decoder& d) {
  if (config.text("hidden_act", "silu") != "silu") config.refuse("hidden_act", "experts are supported with silu");
  d.experts.count = config.integer(config.has("num_local_experts") ? "num_local_experts" : "num_experts");
  d.experts.top_k = config.integer("num_experts_per_tok");
  d.experts.hidden = d.hidden;
  // Coefficients of losses that transformers adds only while it returns the scores of the routers.
  config.ignore({"router_aux_loss_coef", "output_router_logits"});
}

}  // namespace

ModelJob mixtral_job(const ModelConfig& config, const Finetune& tuning) {
  Decoder d = read_decoder(config);
  d.title = "Mixtral";
  d.map = "mixtral";
  d.rotary = read_rotary(config, d.head_dim);
  d.windows = read_windows(config, d.layers, [](int64_t) { return true; });
  read_experts(config, d);
  if (config.number("router_jitter_noise", 0) != 0) config.refuse("router_jitter_noise");
  return decoder_job(d, tuning);
}

ModelJob qwen3_moe_job(const ModelConfig& config, const Finetune& tuning) {
  Decoder d = llama(config);
  d.title = "Qwen3-MoE";
  d.map = "qwen3_moe";
  d.head_norms = true;
  read_qwen_windows(config, d);
  read_experts(config, d);
  d.experts.hidden = config.integer("moe_intermediate_size");
  d.experts.normalizes = config.flag("norm_topk_prob", false);
  if (config.integer("decoder_sparse_step", 1) != 1) config.refuse("decoder_sparse_step");
  config.refuse_if_set({"mlp_only_layers"});
  return decoder_job(d, tuning);
}

ModelJob olmoe_job(const ModelConfig& config, const Finetune& tuning) {
  Decoder d = llama(config);
  d.title = "OLMoE";
  d.map = "qwen3_moe";
  d.qk_norms = true;
  read_experts(config, d);
  d.experts.normalizes = config.flag("norm_topk_prob", false);
  config.refuse_if_set({"clip_qkv"});
  return decoder_job(d, tuning);
}

ModelJob gemma2_job(const ModelConfig& config, const Finetune& tuning) {
  Decoder d = gemma(config);
  d.title = "Gemma 2";
  d.rotary = read_rotary(config, d.head_dim);
  d.windows = read_windows(config, d.layers, [](int64_t layer) { return layer % 2 == 0; });
  return decoder_job(d, tuning);
}

ModelJob gemma3_job(const ModelConfig& config, const Finetune& tuning) {
  Decoder d = gemma(config);
  d.title = "Gemma 3";
  d.head_norms = true;
  config.ignore({"sliding_window_pattern", "_sliding_window_pattern", "rope_local_base_freq"});
  if (const int64_t every = config.integer("sliding_window_pattern", 6); every != 6 && !config.has("layer_types"))
    config.refuse("sliding_window_pattern");
  d.windows = read_windows(config, d.layers, [](int64_t layer) { return (layer + 1) % 6 != 0; });
  d.rotary = read_rotary(config, d.head_dim, "full_attention");
  const std::string local = config.has("rope_parameters")
                                ? read_rotary(config, d.head_dim, "sliding_attention")
                                : LayerLine("", "").with("base", config.number("rope_local_base_freq", 10000.0)).text();
  d.local_rotary = local.substr(local.find(", base"));
  if (d.local_rotary.ends_with("}")) d.local_rotary.pop_back();
  const bool all = std::all_of(d.windows.begin(), d.windows.end(), [&](int64_t w) { return w == d.windows.front(); });
  if (all && d.windows.front() > 0) d.rotary = d.local_rotary;
  if (all || d.local_rotary == d.rotary) d.local_rotary.clear();
  return decoder_job(d, tuning);
}

ModelJob phi3_job(const ModelConfig& config, const Finetune& tuning) {
  Decoder d = read_decoder(config);
  d.title = "Phi-3";
  d.map = "phi3";
  d.rotary = read_rotary(config, d.head_dim);
  d.windows = read_windows(config, d.layers, [](int64_t) { return true; });
  config.ignore({"original_max_position_embeddings", "auto_map"});
  return decoder_job(d, tuning);
}

}  // namespace trainctl
