// The files of a model folder other than the weights: config.json, and those of the tokenizer.
#include "engine/model_folder/export_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/base/error.h"

namespace trainctl {
namespace {

using Json = nlohmann::ordered_json;

/// The layers of a job by name.
class Layers {
 public:
  explicit Layers(const JobSpec& job) : job_(job) {}

  const LayerSpec* find(std::string_view name) const {
    const auto found = std::find_if(job_.network.begin(), job_.network.end(),
                                    [&](const LayerSpec& layer) { return layer.name == name; });
    return found == job_.network.end() ? nullptr : &*found;
  }
  bool has(std::string_view name) const { return find(name) != nullptr; }
  const LayerSpec& at(std::string_view name) const {
    const LayerSpec* layer = find(name);
    if (layer == nullptr)
      throw SpecError(job_.position("network"), "network", fmt::format("has no layer '{}'", name),
                      "the map is for another network");
    return *layer;
  }
  int64_t integer(std::string_view layer, std::string_view field) const { return at(layer).attrs.integer(field); }
  double number(std::string_view layer, std::string_view field) const { return at(layer).attrs.number(field, 0); }
  bool is_shared(std::string_view layer) const { return !at(layer).attrs.text("share").empty(); }
  bool has_bias(std::string_view layer) const { return has(layer) && at(layer).attrs.flag("bias", true); }

  /// The number of blocks h.0, h.1, …
  int64_t blocks() const {
    int64_t count = 0;
    while (std::any_of(job_.network.begin(), job_.network.end(),
                       [&](const LayerSpec& layer) { return layer.name.starts_with(fmt::format("h.{}.", count)); }))
      ++count;
    return count;
  }

 private:
  const JobSpec& job_;
};

int64_t sequence_length(const JobSpec& job) {
  const int64_t of_tokens = job.dataset.length;
  return of_tokens > 0 || job.dataset.shape.empty() ? of_tokens : job.dataset.shape[0];
}

Json gpt2_fields(const Layers& layers) {
  const int64_t width = layers.integer("wte", "units"), inner = layers.integer("h.0.up", "units");
  return {{"vocab_size", layers.integer("wte", "vocab")},
          {"n_positions", layers.integer("wpe", "max_length")},
          {"n_embd", width},
          {"n_layer", layers.blocks()},
          {"n_head", layers.integer("h.0.attn", "heads")},
          {"n_inner", inner == 4 * width ? Json() : Json(inner)},
          {"layer_norm_epsilon", layers.number("ln_f", "eps")},
          {"tie_word_embeddings", layers.is_shared("head")}};
}

Json decoder_fields(const Layers& layers) {
  const int64_t heads = layers.integer("h.0.attn", "heads");
  const int64_t kv_heads = layers.at("h.0.attn").attrs.integer("kv_heads", heads);
  const int64_t head_dim = layers.has("h.0.q") ? layers.integer("h.0.q", "units") / heads
                                               : layers.integer("h.0.qkv", "units") / (heads + 2 * kv_heads);
  Json fields = {{"vocab_size", layers.integer("table", "vocab")},
                 {"hidden_size", layers.integer("table", "units")},
                 {"num_hidden_layers", layers.blocks()},
                 {"num_attention_heads", heads},
                 {"num_key_value_heads", kv_heads},
                 {"head_dim", head_dim},
                 {"rms_norm_eps", layers.number("norm", "eps")},
                 {"tie_word_embeddings", layers.is_shared("head")}};
  if (layers.has("h.0.gate")) fields["intermediate_size"] = layers.integer("h.0.gate", "units");
  return fields;
}

Json encoder_fields(const Layers& layers) {
  Json fields = {{"hidden_size", layers.integer("h.0.q", "units")},
                 {"intermediate_size", layers.integer("h.0.up", "units")},
                 {"num_hidden_layers", layers.blocks()},
                 {"num_attention_heads", layers.integer("h.0.attn", "heads")}};
  if (layers.has("words")) fields["vocab_size"] = layers.integer("words", "vocab");
  return fields;
}

/// No family has these terms of scores, so that a config.json would be that of another model.
void require_plain_scores(const JobSpec& job) {
  for (const LayerSpec& layer : job.network) {
    const char* field = layer.attrs.flag("alibi")                          ? "alibi"
                        : layer.attrs.text("score_bias", "none") != "none" ? "score_bias"
                                                                           : "";
    if (*field != 0)
      throw SpecError(job.position(layer.path), layer.path,
                      fmt::format("no family of models that trainctl exports has attention with {}", field),
                      "export one file with -o model.safetensors");
  }
}

/// Dropout of attention, under the name that the family uses for it.
void update_dropout(Json& config, std::string_view map, const Layers& layers) {
  const LayerSpec* const attention = layers.find("h.0.attn");
  const char* const name = map == "gpt2"                   ? "attn_pdrop"
                           : map == "bert" || map == "vit" ? "attention_probs_dropout_prob"
                                                           : "attention_dropout";
  const double p = attention == nullptr ? 0 : attention->attrs.number("dropout", 0);
  if (p > 0 || config.contains(name)) config[name] = p;
}

/// The sizes of the experts, under the names that the family uses for them.
void update_experts(Json& config, const Layers& layers) {
  if (!layers.has("h.0.moe") || config.contains("n_routed_experts")) return;
  const auto set = [&](const char* name, const char* other, const char* field) {
    config[config.contains(name) ? name : other] = layers.integer("h.0.moe", field);
  };
  set("num_local_experts", "num_experts", "experts");
  set("moe_intermediate_size", "intermediate_size", "hidden");
  config["num_experts_per_tok"] = layers.integer("h.0.moe", "top_k");
}

Json fields_of(std::string_view map, const Layers& layers) {
  if (map == "gpt2") return gpt2_fields(layers);
  if (map == "bert" || map == "vit") return encoder_fields(layers);
  if (map == "deepseek")
    return {{"vocab_size", layers.integer("table", "vocab")}, {"num_hidden_layers", layers.blocks()}};
  return decoder_fields(layers);
}

/// A classifier's labels keep their names unless their number changed.
void update_labels(Json& config, std::string_view map, const Layers& layers) {
  const LayerSpec* classifier = layers.find("classifier");
  if (classifier == nullptr) return;
  config["architectures"] = {map == "bert" ? "BertForSequenceClassification" : "ViTForImageClassification"};
  const auto count = static_cast<size_t>(classifier->attrs.integer("units"));
  config.erase("num_labels");  // transformers takes the number of id2label
  if (config.value("id2label", Json::object()).size() == count) return;
  config["id2label"] = config["label2id"] = Json::object();
  for (size_t i = 0; i < count; ++i) {
    const std::string label = fmt::format("LABEL_{}", i);
    config["id2label"][std::to_string(i)] = label;
    config["label2id"][label] = i;
  }
}

Json new_gpt2(const JobSpec& job, const Layers& layers) {
  const std::string act = layers.at("h.0.act").type;
  const bool is_tanh = act == "gelu" && layers.at("h.0.act").attrs.text("approximate") == "tanh";
  if (act != "gelu")
    throw SpecError(job.position("network"), "network", "has no activation of GPT-2: " + act, "use gelu");
  return {{"architectures", {"GPT2LMHeadModel"}},
          {"model_type", "gpt2"},
          {"activation_function", is_tanh ? "gelu_new" : "gelu"},
          {"attn_pdrop", 0.0},
          {"embd_pdrop", 0.0},
          {"resid_pdrop", 0.0}};
}

/// `refuse`: throws for a job with what it is given.
template <class Refuse>
void require_plain_router(const LayerSpec& moe, bool normalizes_heads, const Refuse& refuse) {
  if (moe.attrs.text("router.score", "softmax") != "softmax" || moe.attrs.number("router.scale", 1.0) != 1.0 ||
      moe.attrs.integer("router.groups", 1) != 1)
    refuse("sigmoid scores, scales or groups of experts");
  if (moe.attrs.text("router.balance", "none") == "bias") refuse("a bias that balances the experts");
  if (moe.attrs.integer("shared_hidden", 0) > 0) refuse("shared experts");
  if (moe.attrs.flag("drop")) refuse("dropped tokens");
  if (moe.attrs.flag("bias") || moe.attrs.flag("router.bias")) refuse("experts or routers with biases");
  if (moe.attrs.text("activation", "swiglu") != "swiglu") refuse("experts with an activation other than swiglu");
  if (!normalizes_heads && !moe.attrs.flag("router.normalize", true)) refuse("a router without normalize");
}

/// Mixtral or Qwen3-MoE.
Json new_mixture(const JobSpec& job, const Layers& layers, bool normalizes_heads) {
  Json config = {{"architectures", {normalizes_heads ? "Qwen3MoeForCausalLM" : "MixtralForCausalLM"}},
                 {"model_type", normalizes_heads ? "qwen3_moe" : "mixtral"},
                 {"hidden_act", "silu"},
                 {"max_position_embeddings", sequence_length(job)},
                 {"rope_theta", layers.number(normalizes_heads ? "h.0.q_turn" : "h.0.turn", "base")}};
  if (normalizes_heads) {
    config["norm_topk_prob"] = layers.at("h.0.moe").attrs.flag("router.normalize", true);
    config["attention_bias"] = layers.has_bias("h.0.q");
    config["moe_intermediate_size"] = nullptr;
  } else {
    config["num_local_experts"] = config["sliding_window"] = nullptr;
  }
  return config;
}

/// The fields of a layer that a model computes with, without those that only training reads.
Attrs fields_of_model(const Attrs& attrs) {
  Attrs kept;
  for (const auto& [name, value] : attrs)
    if (!name.starts_with("init") && !name.starts_with("router.aux") && name != "router.z_loss" &&
        name != "router.balance" && name != "capacity" && name != "dropout")
      kept.set(name, value);
  return kept;
}

/// Throws if a block differs from the first one: the fields of config.json hold for all blocks.
template <class Refuse>
void require_equal_blocks(const JobSpec& job, const Layers& layers, const Refuse& refuse) {
  constexpr std::string_view kFirst = "h.0.";
  for (int64_t block = 1; block < layers.blocks(); ++block)
    for (const LayerSpec& first : job.network) {
      if (!first.name.starts_with(kFirst)) continue;
      const LayerSpec* const same = layers.find(fmt::format("h.{}.{}", block, first.name.substr(kFirst.size())));
      if (same == nullptr || same->type != first.type || fields_of_model(same->attrs) != fields_of_model(first.attrs))
        refuse(fmt::format("blocks that differ: {} and block {}", first.name, block));
    }
}

/// Llama, or the family that has the biases and norms of the job.
Json new_decoder(const JobSpec& job, const Layers& layers) {
  const bool has_norms = layers.has("h.0.q_norm"), bias = layers.has_bias("h.0.qkv");
  const LayerSpec& rotary = layers.at(has_norms ? "h.0.q_turn" : "h.0.turn");
  const auto refuse = [&](const std::string& what) {
    throw SpecError(job.position("network"), "network", "a config.json cannot be made from a job with " + what,
                    "copy the config.json of such a model into the folder of the weights (weights.from)");
  };
  if (rotary.attrs.text("pairs", "half") != "half") refuse("rotary pairs: interleaved");
  if (rotary.attrs.text("scaling", "none") != "none" || rotary.attrs.integer("rotary_dim", 0) > 0)
    refuse("rope scaling");
  if (layers.at("h.0.attn").attrs.integer("window", 0) > 0) refuse("windows");
  if (layers.at("h.0.attn").attrs.flag("sinks")) refuse("attention sinks");
  if (layers.at("h.0.attn").attrs.number("softcap", 0) > 0) refuse("a softcap of scores");
  if (layers.at("h.0.attn").attrs.has("scale")) refuse("a scale of scores");
  if (!layers.at("h.0.attn").attrs.flag("causal")) refuse("attention that is not causal");
  if (layers.has("h.0.qkv") && layers.at("h.0.attn").attrs.text("packing", "heads") != "heads") refuse("packing: qkv");
  require_equal_blocks(job, layers, refuse);
  const bool has_experts = layers.has("h.0.moe");
  if (has_experts) require_plain_router(layers.at("h.0.moe"), has_norms, refuse);
  if (!has_experts && layers.at("h.0.act").type != "silu") refuse("an activation other than silu");
  if (layers.has("h.0.post1")) refuse("norms after attention");
  if (has_experts) return new_mixture(job, layers, has_norms);
  const bool is_qwen2 = bias && !layers.has_bias("h.0.proj");
  Json config = {{"architectures",
                  {has_norms  ? "Qwen3ForCausalLM"
                   : is_qwen2 ? "Qwen2ForCausalLM"
                              : "LlamaForCausalLM"}},
                 {"model_type", has_norms  ? "qwen3"
                                : is_qwen2 ? "qwen2"
                                           : "llama"},
                 {"hidden_act", "silu"},
                 {"max_position_embeddings", sequence_length(job)},
                 {"rope_theta", rotary.attrs.number("base", 10000.0)}};
  if (!is_qwen2) config["attention_bias"] = has_norms ? layers.has_bias("h.0.q") : bias;
  if (!is_qwen2 && !has_norms) config["mlp_bias"] = layers.has_bias("h.0.gate");
  return config;
}

Json read_config(const std::string& folder) {
  const std::string file = folder + "/config.json";
  std::ifstream in(file);
  if (!in) throw EnvError(file + ": cannot be opened");
  Json config = Json::parse(in, nullptr, false);
  if (!config.is_object()) throw EnvError(file + ": is not a JSON object");
  return config;
}

}  // namespace

std::string config_for_export(const JobSpec& job, std::string_view map, const std::string& source,
                              std::string_view dtype) {
  require_plain_scores(job);
  const Layers layers(job);
  Json config;
  if (!source.empty())
    config = read_config(source);
  else if (map == "gpt2")
    config = new_gpt2(job, layers);
  else if (map == "llama" || map == "mixtral" || map == "qwen3_moe")
    config = new_decoder(job, layers);
  else
    throw SpecError(
        job.position("weights"), "weights",
        fmt::format("a config.json for the map '{}' is copied from the folder that the weights came from, but "
                    "the job has no weights.from",
                    map),
        "export one file with -o model.safetensors, and write config.json next to it");
  const Json fields = fields_of(map, layers);
  for (const auto& [name, value] : fields.items())
    if (config.contains(name) || !value.is_null()) config[name] = value;
  config.erase("quantization_config");  // exported weights are not quantized
  update_experts(config, layers);
  update_labels(config, map, layers);
  update_dropout(config, map, layers);
  config[config.contains("dtype") ? "dtype" : "torch_dtype"] = dtype;
  return config.dump(2) + "\n";
}

std::vector<std::string> companion_files(const std::string& folder) {
  constexpr std::array<const char*, 16> kNames = {"generation_config.json",
                                                  "tokenizer.json",
                                                  "tokenizer_config.json",
                                                  "special_tokens_map.json",
                                                  "added_tokens.json",
                                                  "vocab.json",
                                                  "vocab.txt",
                                                  "merges.txt",
                                                  "tokenizer.model",
                                                  "spiece.model",
                                                  "sentencepiece.bpe.model",
                                                  "chat_template.jinja",
                                                  "chat_template.json",
                                                  "processor_config.json",
                                                  "preprocessor_config.json",
                                                  "added_tokens.txt"};
  std::vector<std::string> files;
  for (const char* name : kNames)
    if (std::filesystem::is_regular_file(std::filesystem::path(folder) / name)) files.emplace_back(name);
  return files;
}

}  // namespace trainctl
