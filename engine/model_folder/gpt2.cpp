// GPT-2: GPT2LMHeadModel of transformers.
#include "engine/model_folder/activation.h"
#include "engine/model_folder/families.h"

namespace trainctl {

ModelJob gpt2_job(const ModelConfig& config, const Finetune& tuning) {
  if (!config.flag("scale_attn_weights", true)) config.refuse("scale_attn_weights");
  config.refuse_if_set({"scale_attn_by_inverse_layer_idx", "add_cross_attention", "quantization_config"});
  config.ignore({"reorder_and_upcast_attn", "n_ctx", "summary_activation", "summary_first_dropout",
                 "summary_proj_to_labels", "summary_type", "summary_use_proj", "task_specific_params"});
  const int64_t width = config.integer("n_embd"), positions = config.integer("n_positions", 1024);
  const double eps = config.number("layer_norm_epsilon", 1e-5);
  const bool is_tied = config.flag("tie_word_embeddings", true);
  ModelJob job{.title = "GPT-2", .map = "gpt2"};
  const auto var = [&](const char* name, int64_t value) { job.vars.emplace_back(name, std::to_string(value)); };
  var("layers", config.integer("n_layer"));
  var("heads", config.integer("n_head"));
  var("d", width);
  var("hidden", config.integer("n_inner", 4 * width));
  var("vocab", config.integer("vocab_size"));
  var("positions", positions);
  var("length", positions < 1024 ? positions : 1024);

  LayerLine positions_line("wpe", "position_embedding"), attention("attn", "attention");
  if (tuning.trains_adapters()) {
    positions_line.with("inputs", "[wte, documents]");
    attention.with("inputs", "[qkv, documents]").with("mask", "documents");
  }
  attention.with("heads", "${heads}").with("causal", true);
  if (const double p = tuning.attention_dropout(config); p > 0) attention.with("dropout", p);

  const auto norm = [&](const char* name) { return LayerLine(name, "layer_norm").with("eps", eps).text(); };
  const auto dense = [](const char* name, const char* units) { return LayerLine(name, "dense").with("units", units); };
  job.modules = {{"block",
                  {
                      norm("ln1"),
                      dense("qkv", "${3*d}").text(),
                      attention.text(),
                      dense("proj", "${d}").text(),
                      LayerLine("sum1", "add").with("inputs", "[proj, input]").text(),
                      norm("ln2"),
                      dense("up", "${hidden}").text(),
                      LayerLine("act", activation_of(config, "activation_function", "gelu_new")).text(),
                      dense("down", "${d}").text(),
                      LayerLine("sum2", "add").with("inputs", "[down, sum1]").text(),
                  }}};
  LayerLine head = dense("head", "${vocab}").with("bias", false);
  if (is_tied) head.with("share", "wte");
  job.network = {
      LayerLine("wte", "embedding").with("vocab", "${vocab}").with("units", "${d}").text(),
      positions_line.with("max_length", "${positions}").text(),
      R"({module: block, name: h, repeat: "${layers}"})",
      norm("ln_f"),
      head.text(),
  };
  job.is_decoder = true;
  job.products = {"h.*.qkv", "h.*.proj", "h.*.up", "h.*.down"};
  job.no_decay = {"*.bias", "*ln*.weight"};
  job.recompute = {"h.*.ln1", "h.*.ln2", "h.*.act"};
  return job;
}

}  // namespace trainctl
