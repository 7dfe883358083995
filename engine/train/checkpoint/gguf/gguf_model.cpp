// Hugging Face models under the names that llama.cpp uses: the settings of an architecture, and the names, order and
// values of its tensors. Names and settings are those of llama.cpp's convert_hf_to_gguf.py.
#include "engine/train/checkpoint/gguf/gguf_model.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <numbers>

#include "engine/base/error.h"
#include "engine/base/json_field.h"
#include "engine/base/text.h"

namespace trainctl {
namespace {

/// model_type -> architecture of llama.cpp.
const std::map<std::string, std::string>& architectures() {
  static const std::map<std::string, std::string> all = {
      {"gpt2", "gpt2"},   {"llama", "llama"},   {"mistral", "llama"},      {"qwen2", "qwen2"},
      {"qwen3", "qwen3"}, {"gemma2", "gemma2"}, {"gemma3_text", "gemma3"}, {"phi3", "phi3"}};
  return all;
}

/// From the names of tensors within a block of the Hugging Face model to the names in llama.cpp.
const std::map<std::string, std::string>& names_in_block() {
  static const std::map<std::string, std::string> all = {{"input_layernorm", "attn_norm"},
                                                         {"self_attn.q_proj", "attn_q"},
                                                         {"self_attn.k_proj", "attn_k"},
                                                         {"self_attn.v_proj", "attn_v"},
                                                         {"self_attn.qkv_proj", "attn_qkv"},
                                                         {"self_attn.o_proj", "attn_output"},
                                                         {"self_attn.q_norm", "attn_q_norm"},
                                                         {"self_attn.k_norm", "attn_k_norm"},
                                                         {"post_attention_layernorm", "ffn_norm"},
                                                         {"pre_feedforward_layernorm", "ffn_norm"},
                                                         {"post_feedforward_layernorm", "post_ffw_norm"},
                                                         {"mlp.gate_proj", "ffn_gate"},
                                                         {"mlp.up_proj", "ffn_up"},
                                                         {"mlp.gate_up_proj", "ffn_up"},
                                                         {"mlp.down_proj", "ffn_down"},
                                                         {"ln_1", "attn_norm"},
                                                         {"attn.c_attn", "attn_qkv"},
                                                         {"attn.c_proj", "attn_output"},
                                                         {"ln_2", "ffn_norm"},
                                                         {"mlp.c_fc", "ffn_up"},
                                                         {"mlp.c_proj", "ffn_down"}};
  return all;
}

struct NameInBlock {
  std::string block, layer, end;  ///< "3", "mlp.up_proj", ".weight"
};

/// Splits a name such as "model.layers.3.mlp.up_proj.weight"; nothing for a name outside of blocks.
std::optional<NameInBlock> in_block(const std::string& name, const std::string& begin) {
  if (!name.starts_with(begin)) return {};
  const size_t number_end = name.find('.', begin.size()), end = name.rfind('.');
  if (number_end == std::string::npos || end <= number_end) return {};
  return NameInBlock{name.substr(begin.size(), number_end - begin.size()),
                     name.substr(number_end + 1, end - number_end - 1), name.substr(end)};
}

[[noreturn]] void refuse_model(const std::string& what, const std::string& hint) {
  throw SpecError({}, "--format", what, hint);
}

std::vector<std::string> known_types() {
  std::vector<std::string> names;
  for (const auto& [type, architecture] : architectures()) names.push_back(type);
  return names;
}

}  // namespace

GgufModel::GgufModel(const nlohmann::json& config) : config_(config), type_(field_or(config, "model_type", "")) {
  const auto found = architectures().find(type_);
  if (found == architectures().end())
    refuse_model("gguf does not support models of type " + (type_.empty() ? "unknown" : type_),
                 "supported types: " + join(known_types()) + "; export a model folder with -o FOLDER/");
  architecture_ = found->second;
  const std::vector<std::string> known = {"", "default", "linear", "llama3"};
  if (const std::string kind = rotary_type(); std::find(known.begin(), known.end(), kind) == known.end())
    refuse_model("gguf export does not support rope_scaling of type " + kind, "supported types: linear, llama3");
}

/// The settings of the rotary embedding. In files of transformers 5 the base and the scaling are in one object, for
/// Gemma one object per kind of attention.
const nlohmann::json& GgufModel::rotary() const {
  static const nlohmann::json nothing = nlohmann::json::object();
  for (const char* field : {"rope_scaling", "rope_parameters"}) {
    if (!config_.contains(field) || !config_[field].is_object()) continue;
    const nlohmann::json& all = config_[field];
    return all.contains("full_attention") && all["full_attention"].is_object() ? all["full_attention"] : all;
  }
  return nothing;
}

std::string GgufModel::rotary_type() const { return field_or(rotary(), "rope_type", field_or(rotary(), "type", "")); }

int64_t GgufModel::whole(const char* field) const {
  const auto value = field_or(config_, field, int64_t{0});
  if (value <= 0)
    refuse_model(std::string("config.json has no ") + field, "export a model folder first and look at its config.json");
  return value;
}

double GgufModel::real(const char* field, double fallback) const { return field_or(config_, field, fallback); }

int64_t GgufModel::heads() const { return whole(type_ == "gpt2" ? "n_head" : "num_attention_heads"); }
int64_t GgufModel::key_heads() const { return field_or(config_, "num_key_value_heads", heads()); }
int64_t GgufModel::head_size() const { return field_or(config_, "head_dim", whole("hidden_size") / heads()); }

double GgufModel::rotary_base() const { return real("rope_theta", field_or(rotary(), "rope_theta", 10'000.0)); }

std::vector<std::pair<std::string, GgufSetting>> GgufModel::settings() const {
  Settings all = {{"general.architecture", architecture_}};
  if (type_ == "gpt2")
    add_gpt2(all);
  else
    add_decoder(all);
  return all;
}

void GgufModel::add_gpt2(Settings& all) const {
  const std::string a = architecture_ + ".";
  const auto number = [&](const std::string& key, int64_t value) {
    all.emplace_back(a + key, static_cast<uint32_t>(value));
  };
  number("context_length", field_or(config_, "n_positions", field_or(config_, "n_ctx", int64_t{1024})));
  number("embedding_length", whole("n_embd"));
  number("block_count", whole("n_layer"));
  const auto inner = field_or(config_, "n_inner", int64_t{0});
  number("feed_forward_length", inner > 0 ? inner : 4 * whole("n_embd"));
  number("attention.head_count", heads());
  all.emplace_back(a + "attention.layer_norm_epsilon", static_cast<float>(real("layer_norm_epsilon", 1e-5)));
}

void GgufModel::add_decoder(Settings& all) const {
  const std::string a = architecture_ + ".";
  const auto number = [&](const std::string& key, int64_t value) {
    all.emplace_back(a + key, static_cast<uint32_t>(value));
  };
  const auto real_number = [&](const std::string& key, double value) {
    all.emplace_back(a + key, static_cast<float>(value));
  };
  number("context_length", whole("max_position_embeddings"));
  number("embedding_length", whole("hidden_size"));
  number("block_count", whole("num_hidden_layers"));
  number("feed_forward_length", whole("intermediate_size"));
  number("attention.head_count", heads());
  number("attention.head_count_kv", key_heads());
  number("attention.key_length", head_size());
  number("attention.value_length", head_size());
  number("vocab_size", whole("vocab_size"));
  real_number("attention.layer_norm_rms_epsilon", real("rms_norm_eps", 1e-6));
  real_number("rope.freq_base", rotary_base());
  if (!is_gemma()) number("rope.dimension_count", head_size());
  const auto window = field_or(config_, "sliding_window", int64_t{0});
  if ((is_gemma() || type_ == "phi3") && window > 0) number("attention.sliding_window", window);
  if (real("attn_logit_softcapping", 0) > 0) real_number("attn_logit_softcapping", real("attn_logit_softcapping", 0));
  if (real("final_logit_softcapping", 0) > 0)
    real_number("final_logit_softcapping", real("final_logit_softcapping", 0));
  add_rope_scaling(all);
}

void GgufModel::add_rope_scaling(Settings& all) const {
  if (rotary_type() != "linear") return;
  all.emplace_back(architecture_ + ".rope.scaling.type", std::string("linear"));
  all.emplace_back(architecture_ + ".rope.scaling.factor", static_cast<float>(field_or(rotary(), "factor", 1.0)));
}

/// The factors of Llama 3.1: long wavelengths are divided by the factor, short wavelengths stay, and wavelengths
/// between the two are interpolated.
std::vector<float> GgufModel::rotary_factors() const {
  if (rotary_type() != "llama3") return {};
  const nlohmann::json& scaling = rotary();
  const double factor = field_or(scaling, "factor", 8.0), low = field_or(scaling, "low_freq_factor", 1.0),
               high = field_or(scaling, "high_freq_factor", 4.0);
  const auto length = static_cast<double>(field_or(scaling, "original_max_position_embeddings", int64_t{8192}));
  std::vector<float> factors;
  for (int64_t i = 0; i < head_size(); i += 2) {
    const double frequency = 1 / std::pow(rotary_base(), static_cast<double>(i) / static_cast<double>(head_size()));
    const double wave = 2 * std::numbers::pi / frequency;
    if (wave < length / high) {
      factors.push_back(1);
    } else if (wave > length / low) {
      factors.push_back(static_cast<float>(factor));
    } else {
      const double smooth = (length / wave - low) / (high - low);
      factors.push_back(static_cast<float>(1 / ((1 - smooth) / factor + smooth)));
    }
  }
  return factors;
}

std::vector<std::string> GgufModel::notes() const {
  const auto window = field_or(config_, "sliding_window", int64_t{0});
  if (type_ != "mistral" || window <= 0 || window >= field_or(config_, "max_position_embeddings", int64_t{0}))
    return {};
  return {"llama.cpp ignores the sliding window of " + with_commas(window) + " tokens of a mistral model"};
}

std::optional<GgufPlace> GgufModel::place_of(const std::string& name) const {
  return type_ == "gpt2" ? place_in_gpt2(name) : place_in_decoder(name);
}

std::optional<GgufPlace> GgufModel::place_in_gpt2(const std::string& full) const {
  constexpr std::string_view kBegin = "transformer.";
  const std::string name = full.starts_with(kBegin) ? full.substr(kBegin.size()) : full;
  if (name == "lm_head.weight" || name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias")) return {};
  static const std::map<std::string, std::string> outside = {{"wte.weight", "token_embd.weight"},
                                                             {"wpe.weight", "position_embd.weight"},
                                                             {"ln_f.weight", "output_norm.weight"},
                                                             {"ln_f.bias", "output_norm.bias"}};
  if (const auto found = outside.find(name); found != outside.end()) return GgufPlace{found->second};
  const std::optional<NameInBlock> inside = in_block(name, "h.");
  const auto known = inside ? names_in_block().find(inside->layer) : names_in_block().end();
  if (known == names_in_block().end())
    refuse_model("gguf has no name for the tensor " + full, "it is not part of a gpt2 model");
  return GgufPlace{.name = "blk." + inside->block + "." + known->second + inside->end,
                   .is_transposed = inside->end == ".weight" && inside->layer.find("c_") != std::string::npos};
}

std::optional<GgufPlace> GgufModel::place_in_decoder(const std::string& name) const {
  const bool is_tied = field_or(config_, "tie_word_embeddings", is_gemma());
  if (name.ends_with(".rotary_emb.inv_freq") || (name == "lm_head.weight" && is_tied)) return {};
  static const std::map<std::string, std::string> outside = {{"model.embed_tokens.weight", "token_embd.weight"},
                                                             {"model.norm.weight", "output_norm.weight"},
                                                             {"lm_head.weight", "output.weight"}};
  GgufPlace place;
  place.added = is_gemma() && name.ends_with("norm.weight") ? 1.0F : 0.0F;
  if (const auto found = outside.find(name); found != outside.end()) {
    place.name = found->second;
    return place;
  }
  const std::optional<NameInBlock> inside = in_block(name, "model.layers.");
  const auto known = inside ? names_in_block().find(inside->layer) : names_in_block().end();
  if (known == names_in_block().end())
    refuse_model("gguf has no name for the tensor " + name, "it is not part of a " + type_ + " model");
  const bool is_after = is_gemma() && inside->layer == "post_attention_layernorm";
  place.name = "blk." + inside->block + "." + (is_after ? "post_attention_norm" : known->second) + inside->end;
  if (architecture_ == "llama" && inside->layer == "self_attn.q_proj") place.paired_heads = heads();
  if (architecture_ == "llama" && inside->layer == "self_attn.k_proj") place.paired_heads = key_heads();
  return place;
}

}  // namespace trainctl
