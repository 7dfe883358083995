// The settings of generation in a model folder: generation_config.json, and config.json for those that it lacks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace trainctl {

struct GenerationConfig {
  std::vector<int64_t> end_tokens;  ///< eos_token_id
  int64_t max_positions = 0;        ///< max_position_embeddings of the model; 0: not known
  bool do_sample = false;
  std::optional<double> temperature, top_p, repetition_penalty;
  std::optional<int64_t> top_k;
  std::vector<std::string> ignored;  ///< fields that would change texts, but that trainctl does not apply
};

/// A folder without the files gives an empty result. Throws EnvError for a file that is not JSON, or a value of another
/// kind.
GenerationConfig read_generation_config(const std::string& folder);

}  // namespace trainctl
