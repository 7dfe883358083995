// Lists how families of decoders differ from each other, by what their classes in transformers compute.
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

/// With use_sliding_window, the layers from max_window_layers on have a window; in Qwen3-MoE, all layers.
void read_qwen_windows(const ModelConfig& config, Decoder& d) {
  const bool used = config.flag("use_sliding_window", false);
  const int64_t most = config.integer("max_window_layers", 0), first = d.map == "qwen3_moe" ? 0 : most;
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
  if (config.text("hidden_act", "silu") != "silu") config.refuse("hidden_act", "experts are supported only with silu");
  for (const char* count : {"num_experts", "n_routed_experts", "num_local_experts"})
    if (config.has(count)) d.experts.count = config.integer(count);
  if (d.experts.count < 1) config.refuse("num_experts", "expected the number of experts");
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

namespace {

/// Rotated scores of heads with YaRN are scaled beyond the square root of their size.
double yarn_scale(const ModelConfig& config) {
  const ModelConfig::Json* rope = config.find(config.has("rope_parameters") ? "rope_parameters" : "rope_scaling");
  if (rope == nullptr || rope->value("rope_type", rope->value("type", "default")) == "default") return 1;
  const double factor = rope->value("factor", 1.0), mscale = rope->value("mscale_all_dim", 0.0);
  const double of_rope = factor > 1 ? 0.1 * mscale * std::log(factor) + 1 : 1;
  return mscale == 0 ? 1 : of_rope * of_rope;
}

void read_latent_attention(const ModelConfig& config, Decoder& d) {
  d.latent = {.q_rank = config.integer("q_lora_rank", 0),
              .kv_rank = config.integer("kv_lora_rank"),
              .nope = config.integer("qk_nope_head_dim"),
              .rope = config.integer("qk_rope_head_dim"),
              .v_head_dim = config.integer("v_head_dim")};
  d.rotary = ", pairs: interleaved" + read_rotary(config, d.latent.rope);
  d.score_scale = yarn_scale(config) / std::sqrt(static_cast<double>(d.latent.nope + d.latent.rope));
  config.ignore({"qk_head_dim"});
}

}  // namespace

ModelJob deepseek_v2_job(const ModelConfig& config, const Finetune& tuning) {
  Decoder d = read_decoder(config);
  d.title = "DeepSeek-V2";
  d.map = "deepseek";
  d.qkv_bias = d.proj_bias = config.flag("attention_bias", false);
  d.mlp_bias = config.flag("mlp_bias", false);
  read_latent_attention(config, d);
  read_experts(config, d);
  d.experts.hidden = config.integer("moe_intermediate_size");
  d.experts.normalizes = false;
  d.experts.scale = config.number("routed_scaling_factor", 1);
  d.experts.shared_hidden = config.integer("n_shared_experts", 0) * d.experts.hidden;
  d.experts.dense_blocks = std::min(config.integer("first_k_dense_replace", 0), d.layers);
  const std::string method = config.text("topk_method", "greedy");
  if (method == "group_limited_greedy") {
    d.experts.groups = config.integer("n_group", 1);
    d.experts.top_groups = config.integer("topk_group", d.experts.groups);
  } else if (method != "greedy") {
    config.refuse("topk_method");
  }
  if (config.integer("moe_layer_freq", 1) != 1) config.refuse("moe_layer_freq");
  if (config.text("scoring_func", "softmax") != "softmax") config.refuse("scoring_func");
  config.refuse_if_set({"norm_topk_prob"});
  config.ignore({"n_group", "topk_group", "aux_loss_alpha", "seq_aux", "ep_size", "auto_map"});
  return decoder_job(d, tuning);
}

ModelJob deepseek_v3_job(const ModelConfig& config, const Finetune& tuning) {
  Decoder d = read_decoder(config);
  d.title = "DeepSeek-V3";
  d.map = "deepseek";
  d.qkv_bias = d.proj_bias = config.flag("attention_bias", false);
  read_latent_attention(config, d);
  read_experts(config, d);
  d.experts.hidden = config.integer("moe_intermediate_size");
  d.experts.has_sigmoids = d.experts.has_balance_bias = true;
  d.experts.normalizes = config.flag("norm_topk_prob", true);
  d.experts.scale = config.number("routed_scaling_factor", 1);
  d.experts.groups = config.integer("n_group", 1);
  d.experts.top_groups = config.integer("topk_group", d.experts.groups);
  d.experts.shared_hidden = config.integer("n_shared_experts", 0) * d.experts.hidden;
  d.experts.dense_blocks = std::min(config.integer("first_k_dense_replace", 0), d.layers);
  if (config.text("topk_method", "noaux_tc") != "noaux_tc") config.refuse("topk_method");
  if (config.integer("moe_layer_freq", 1) != 1) config.refuse("moe_layer_freq");
  if (config.text("scoring_func", "sigmoid") != "sigmoid") config.refuse("scoring_func");
  if (!config.flag("rope_interleave", true)) config.refuse("rope_interleave");
  // Layers that predict more than the next token are ignored; transformers does not read them either.
  config.ignore({"num_nextn_predict_layers", "ep_size", "auto_map", "aux_loss_alpha", "seq_aux"});
  return decoder_job(d, tuning);
}

namespace {

/// Experts as transformers writes them, or MXFP4, which is dequantized when it is read.
void read_quantization(const ModelConfig& config) {
  const ModelConfig::Json* const quantization = config.find("quantization_config");
  if (quantization == nullptr) return;
  if (!quantization->is_object() || quantization->value("quant_method", "") != "mxfp4")
    config.refuse("quantization_config", "the only supported quantized weights are those with quant_method: mxfp4");
}

}  // namespace

ModelJob gpt_oss_job(const ModelConfig& config, const Finetune& tuning) {
  Decoder d = read_decoder(config, true);
  read_quantization(config);
  d.title = "gpt-oss";
  d.map = "gpt_oss";
  d.has_sinks = true;
  d.qkv_bias = d.proj_bias = config.flag("attention_bias", true);
  d.rotary = read_rotary(config, d.head_dim);
  d.windows = read_windows(config, d.layers, [](int64_t layer) { return layer % 2 == 0; });
  read_experts(config, d);
  d.experts.has_biases = true;
  d.experts.activation = "clamped_swiglu";
  if (config.number("swiglu_limit", 7.0) != 7.0) config.refuse("swiglu_limit", "clamped_swiglu has the limit 7");
  if (config.number("swiglu_alpha", 1.702) != 1.702) config.refuse("swiglu_alpha", "clamped_swiglu has the rate 1.702");
  // Other names of num_experts_per_tok, and of the length in rope_scaling.
  config.ignore({"experts_per_token", "initial_context_length"});
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
  d.rotary = read_rotary(config, d.head_dim, "", true);
  d.windows = read_windows(config, d.layers, [](int64_t) { return true; });
  config.ignore({"original_max_position_embeddings", "auto_map"});
  return decoder_job(d, tuning);
}

}  // namespace trainctl
