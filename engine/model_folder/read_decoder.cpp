// Reads the fields of config.json that families of decoders share, under the names of transformers.
#include <fmt/format.h>

#include <algorithm>

#include "engine/base/error.h"
#include "engine/model_folder/activation.h"
#include "engine/model_folder/decoder.h"

namespace trainctl {
namespace {

struct RotaryFields {
  const ModelConfig& scaling;  ///< rope_scaling, or rope_parameters
  const ModelConfig& config;   ///< the whole
  LayerLine line{"", ""};

  void copy(const char* field) {
    if (scaling.has(field)) line.with(field, scaling.number(field, 0));
  }
  void original_length() {
    const char* field = "original_max_position_embeddings";
    line.with(field, scaling.integer(field, config.integer(field, config.integer("max_position_embeddings"))));
  }
};

std::vector<double> numbers_in(const ModelConfig& config, const char* field) {
  std::vector<double> numbers;
  const ModelConfig::Json* list = config.find(field);
  if (list == nullptr || !list->is_array()) throw SpecError({}, config.file(), fmt::format("{} is not a list", field));
  for (const auto& item : *list) {
    if (!item.is_number()) config.refuse(field);
    numbers.push_back(item.get<double>());
  }
  return numbers;
}

void add_scaling(RotaryFields& to, const std::string& type) {
  to.line.with("scaling", type == "su" ? "longrope" : type);
  if (type == "linear") {
    to.copy("factor");
  } else if (type == "llama3") {
    for (const char* field : {"factor", "low_freq_factor", "high_freq_factor"}) to.copy(field);
    to.original_length();
  } else if (type == "yarn") {
    for (const char* field : {"factor", "beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim"})
      to.copy(field);
    if (!to.scaling.flag("truncate", true)) to.line.with("truncate", false);
    to.original_length();
  } else {
    const double length = to.config.number("max_position_embeddings", 0);
    const double original = to.scaling.number("original_max_position_embeddings",
                                              to.config.number("original_max_position_embeddings", length));
    to.scaling.ignore({"factor"});
    to.line.with("factor", length / original);
    to.copy("attention_factor");
    for (const char* field : {"short_factor", "long_factor"}) to.line.with(field, numbers_in(to.scaling, field));
    to.original_length();
  }
}

}  // namespace

std::string read_rotary(const ModelConfig& config, int64_t head_dim, const std::string& kind, bool allows_partial) {
  const ModelConfig::Json* section = config.find("rope_parameters");
  std::string path = "rope_parameters.";
  if (section == nullptr) {
    section = config.find("rope_scaling");
    path = "rope_scaling.";
  } else if (!kind.empty() && section->contains(kind)) {
    section = &(*section)[kind];
    path += kind + ".";
  }
  const ModelConfig scaling(section == nullptr ? ModelConfig::Json::object() : *section, config.file(), path);
  RotaryFields fields{scaling, config};
  const std::string type = scaling.text("rope_type", scaling.text("type", "default"));
  const double base = scaling.number("rope_theta", config.number("rope_theta", 10000.0));
  fields.line.with("base", base);
  const double partial = scaling.number("partial_rotary_factor", config.number("partial_rotary_factor", 1.0));
  if (partial != 1.0 && !allows_partial)
    (scaling.has("partial_rotary_factor") ? scaling : config)
        .refuse("partial_rotary_factor", "models of this family rotate all features of a head; remove it");
  if (partial != 1.0) fields.line.with("rotary_dim", static_cast<int64_t>(static_cast<double>(head_dim) * partial));
  if (type == "linear" || type == "llama3" || type == "yarn" || type == "longrope" || type == "su")
    add_scaling(fields, type);
  else if (type != "default")
    config.refuse(path == "rope_scaling." ? "rope_scaling" : "rope_parameters",
                  type == "dynamic" ? "up to max_position_embeddings it has no effect: remove it from config.json"
                                    : "supported types: default, linear, llama3, yarn, longrope");
  for (const std::string& name : scaling.unknown()) scaling.refuse(name);
  const std::string text = fields.line.text();
  return text.substr(text.find(", base"), text.size() - text.find(", base") - 1);
}

std::vector<int64_t> read_windows(const ModelConfig& config, int64_t layers, bool (*has_window)(int64_t layer)) {
  const int64_t window = config.integer("sliding_window", 0);
  const std::vector<std::string> types = config.texts("layer_types");
  if (!types.empty() && static_cast<int64_t>(types.size()) != layers)
    throw SpecError({}, config.file(), fmt::format("layer_types has {} entries for {} layers", types.size(), layers));
  std::vector<int64_t> windows;
  for (int64_t i = 0; i < layers; ++i) {
    const std::string type =
        types.empty() ? (has_window(i) ? "sliding_attention" : "full_attention") : types[static_cast<size_t>(i)];
    if (type != "sliding_attention" && type != "full_attention") config.refuse("layer_types");
    windows.push_back(type == "sliding_attention" ? window : 0);
  }
  return windows;
}

Decoder read_decoder(const ModelConfig& config, bool allows_quantization) {
  Decoder d;
  d.layers = config.integer("num_hidden_layers");
  d.width = config.integer("hidden_size");
  d.heads = config.integer("num_attention_heads");
  d.kv_heads = config.integer("num_key_value_heads", d.heads);
  d.head_dim = config.integer("head_dim", d.heads > 0 ? d.width / d.heads : 0);
  d.hidden = config.integer("intermediate_size");
  d.vocab = config.integer("vocab_size");
  d.positions = config.integer("max_position_embeddings", 2048);
  d.eps = config.number("rms_norm_eps", 1e-6);
  d.activation = activation_of(config, config.has("hidden_activation") ? "hidden_activation" : "hidden_act", "silu");
  d.is_tied = config.flag("tie_word_embeddings", false);
  d.dropout = config.attention_dropout();
  d.windows.assign(static_cast<size_t>(std::max<int64_t>(d.layers, 0)), 0);
  if (!allows_quantization) config.refuse_if_set({"quantization_config"});
  config.refuse_if_set({"add_cross_attention"});
  config.ignore({"hidden_act", "pretraining_tp"});
  return d;
}

}  // namespace trainctl
