// The config.json of a model folder, read field by field.
#include "engine/model_folder/model_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "engine/base/error.h"
#include "engine/base/text.h"

namespace trainctl {
namespace {

/// Fields of every family that do not change what a forward pass computes.
const std::vector<std::string> kWithoutEffect = {"_name_or_path",
                                                 "architectures",
                                                 "bos_token_id",
                                                 "cache_implementation",
                                                 "chunk_size_feed_forward",
                                                 "dtype",
                                                 "eos_token_id",
                                                 "gradient_checkpointing",
                                                 "id2label",
                                                 "initializer_range",
                                                 "is_encoder_decoder",
                                                 "keys_to_ignore_at_inference",
                                                 "label2id",
                                                 "model_type",
                                                 "output_attentions",
                                                 "output_hidden_states",
                                                 "output_past",
                                                 "pad_token_id",
                                                 "problem_type",
                                                 "return_dict",
                                                 "tokenizer_class",
                                                 "torch_dtype",
                                                 "transformers.js_config",
                                                 "transformers_version",
                                                 "use_cache",
                                                 "use_return_dict",
                                                 "_attn_implementation",
                                                 "_attn_implementation_autoset",
                                                 "unsloth_fixed",
                                                 "unsloth_version"};

/// Probabilities of dropout, which only training uses, other than those of attention.
const std::vector<std::string> kDropouts = {"classifier_dropout", "embd_pdrop", "hidden_dropout_prob", "resid_pdrop"};

/// Dropout of the weights of attention, under the names of the families.
const std::vector<std::string> kAttentionDropouts = {"attention_dropout", "attention_probs_dropout_prob", "attn_pdrop"};

bool says_nothing(const ModelConfig::Json& value) {
  if (value.is_null() || (value.is_boolean() && !value.get<bool>())) return true;
  if (value.is_number()) return value.get<double>() == 0;
  return (value.is_array() || value.is_object()) && value.empty();
}

/// A value on one line as YAML writes it: {type: yarn}.
std::string flow_text(const ModelConfig::Json& value) {
  std::vector<std::string> words;
  if (value.is_array()) {
    for (const auto& item : value) words.push_back(flow_text(item));
    return "[" + join(words) + "]";
  }
  if (value.is_object()) {
    for (const auto& [key, item] : value.items()) words.push_back(key + ": " + flow_text(item));
    return "{" + join(words) + "}";
  }
  return value.is_string() ? value.get<std::string>() : value.dump();
}

}  // namespace

ModelConfig::ModelConfig(const std::string& folder) : file_((std::filesystem::path(folder) / "config.json").string()) {
  std::ifstream in(file_);
  if (!in)
    throw EnvError(
        fmt::format("{}: cannot be opened; a model folder contains config.json and model.safetensors", file_));
  json_ = Json::parse(in, nullptr, false);
  if (!json_.is_object()) throw SpecError({}, file_, "is not a JSON object");
  type_ = text("model_type", "");
  if (type_.empty()) throw SpecError({}, file_, "has no model_type, which names the family of the model");
}

ModelConfig::ModelConfig(const Json& section, std::string file, std::string path)
    : file_(std::move(file)), path_(std::move(path)), json_(section) {}

void ModelConfig::add_defaults(const Json& defaults) {
  for (const auto& [name, value] : defaults.items())
    if (!json_.contains(name) && !(name == "rope_parameters" && json_.contains("rope_scaling"))) json_[name] = value;
}

const ModelConfig::Json* ModelConfig::find(std::string_view name) const {
  seen_.emplace(name);
  const auto found = json_.find(std::string(name));
  return found == json_.end() || found->is_null() ? nullptr : &*found;
}

const ModelConfig::Json& ModelConfig::demand(std::string_view name) const {
  const Json* value = find(name);
  if (value == nullptr) throw SpecError({}, file_, fmt::format("{}{} is missing", path_, name));
  return *value;
}

void ModelConfig::refuse_kind(std::string_view name, std::string_view expected) const {
  throw SpecError({}, file_, fmt::format("{}{}: {} is not {}", path_, name, flow_text(*find(name)), expected));
}

int64_t ModelConfig::integer(std::string_view name) const {
  const Json& value = demand(name);
  if (!value.is_number_integer()) refuse_kind(name, "an integer");
  return value.get<int64_t>();
}

int64_t ModelConfig::integer(std::string_view name, int64_t fallback) const {
  return has(name) ? integer(name) : fallback;
}

double ModelConfig::number(std::string_view name, double fallback) const {
  const Json* value = find(name);
  if (value == nullptr) return fallback;
  if (!value->is_number()) refuse_kind(name, "a number");
  return value->get<double>();
}

bool ModelConfig::flag(std::string_view name, bool fallback) const {
  const Json* value = find(name);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) refuse_kind(name, "true or false");
  return value->get<bool>();
}

std::string ModelConfig::text(std::string_view name, const std::string& fallback) const {
  const Json* value = find(name);
  if (value == nullptr) return fallback;
  if (!value->is_string()) refuse_kind(name, "text");
  return value->get<std::string>();
}

std::vector<std::string> ModelConfig::texts(std::string_view name) const {
  std::vector<std::string> all;
  const Json* value = find(name);
  if (value == nullptr) return all;
  if (!value->is_array()) refuse_kind(name, "a list");
  for (const Json& item : *value) {
    if (!item.is_string()) refuse_kind(name, "a list of texts");
    all.push_back(item.get<std::string>());
  }
  return all;
}

void ModelConfig::refuse(std::string_view name, const std::string& hint) const {
  throw SpecError({}, file_, fmt::format("{}{}: {} is not supported", path_, name, flow_text(demand(name))), hint);
}

void ModelConfig::refuse_if_set(const std::vector<std::string>& names) const {
  for (const std::string& name : names)
    if (const Json* value = find(name); value != nullptr && !says_nothing(*value)) refuse(name);
}

void ModelConfig::ignore(const std::vector<std::string>& names) const { seen_.insert(names.begin(), names.end()); }

std::vector<std::string> ModelConfig::unknown() const {
  std::vector<std::string> names;
  for (const auto& [name, value] : json_.items())
    if (!seen_.contains(name) && !says_nothing(value)) names.push_back(name);
  return names;
}

double ModelConfig::attention_dropout() const {
  double p = 0;
  for (const std::string& name : kAttentionDropouts) {
    p = std::max(p, number(name, 0));
    if (p < 0 || p >= 1) refuse(name, "it is a probability, from 0 up to but not including 1");
  }
  return p;
}

std::vector<std::string> ModelConfig::notes() const {
  ignore(kWithoutEffect);
  std::vector<std::string> notes;
  for (const std::string& name : kDropouts) {
    const Json* value = find(name);
    if (value == nullptr || says_nothing(*value)) continue;
    notes.push_back(fmt::format("{}: {} is left out; it acts only in training, where a dropout layer does the same",
                                name, flow_text(*value)));
  }
  if (const std::vector<std::string> names = unknown(); !names.empty())
    notes.push_back(fmt::format("{} has fields that trainctl does not know and ignores: {}", file_, join(names)));
  return notes;
}

}  // namespace trainctl
