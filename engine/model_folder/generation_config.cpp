// The settings of generation in a model folder: generation_config.json, and config.json for those that it lacks.
#include "engine/model_folder/generation_config.h"

#include <array>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/base/error.h"

namespace trainctl {
namespace {

using GenerationJson = nlohmann::json;

GenerationJson read_object(const std::string& file) {
  if (!std::filesystem::exists(file)) return GenerationJson::object();
  std::ifstream in(file);
  GenerationJson json = GenerationJson::parse(in, nullptr, false);
  if (!json.is_object()) throw EnvError(file + " is not a JSON object");
  return json;
}

template <class T>
std::optional<T> value_of(const GenerationJson& json, const char* name, const std::string& file) {
  const auto found = json.find(name);
  if (found == json.end() || found->is_null()) return std::nullopt;
  if (!found->is_number() && !found->is_boolean()) throw EnvError(file + ": " + name + " is not a number");
  return found->get<T>();
}

std::vector<int64_t> end_tokens_of(const GenerationJson& json, const std::string& file) {
  const auto found = json.find("eos_token_id");
  if (found == json.end() || found->is_null()) return {};
  std::vector<int64_t> tokens;
  for (const GenerationJson& each : found->is_array() ? *found : GenerationJson::array({*found})) {
    if (!each.is_number_integer()) throw EnvError(file + ": eos_token_id is not a token");
    tokens.push_back(each.get<int64_t>());
  }
  return tokens;
}

/// Fields whose default, or a value that equals it, leaves texts as they are.
std::vector<std::string> fields_not_applied(const GenerationJson& json) {
  constexpr std::array<std::pair<const char*, double>, 12> kNumbers = {{{"diversity_penalty", 0},
                                                                        {"encoder_no_repeat_ngram_size", 0},
                                                                        {"encoder_repetition_penalty", 1},
                                                                        {"epsilon_cutoff", 0},
                                                                        {"eta_cutoff", 0},
                                                                        {"guidance_scale", 1},
                                                                        {"min_length", 0},
                                                                        {"min_new_tokens", 0},
                                                                        {"min_p", 0},
                                                                        {"no_repeat_ngram_size", 0},
                                                                        {"num_beams", 1},
                                                                        {"typical_p", 1}}};
  std::vector<std::string> names;
  for (const auto& [name, neutral] : kNumbers)
    if (const auto found = json.find(name); found != json.end() && found->is_number() && *found != neutral)
      names.emplace_back(name);
  for (const char* name :
       {"bad_words_ids", "begin_suppress_tokens", "exponential_decay_length_penalty", "forced_bos_token_id",
        "forced_eos_token_id", "penalty_alpha", "sequence_bias", "stop_strings", "suppress_tokens"})
    if (const auto found = json.find(name); found != json.end() && !found->is_null() && !found->empty())
      names.emplace_back(name);
  return names;
}

}  // namespace

GenerationConfig read_generation_config(const std::string& folder) {
  const std::string file = folder + "/generation_config.json", model_file = folder + "/config.json";
  const GenerationJson json = read_object(file), model = read_object(model_file);
  GenerationConfig config;
  config.end_tokens = end_tokens_of(json, file);
  if (config.end_tokens.empty()) config.end_tokens = end_tokens_of(model, model_file);
  for (const char* name : {"n_positions", "max_position_embeddings"})
    if (const auto most = value_of<int64_t>(model, name, model_file)) config.max_positions = *most;
  config.do_sample = value_of<bool>(json, "do_sample", file).value_or(false);
  config.temperature = value_of<double>(json, "temperature", file);
  config.top_p = value_of<double>(json, "top_p", file);
  config.top_k = value_of<int64_t>(json, "top_k", file);
  config.repetition_penalty = value_of<double>(json, "repetition_penalty", file);
  config.ignored = fields_not_applied(json);
  return config;
}

}  // namespace trainctl
