// Models of Hugging Face's format as llama.cpp names them: the settings of an architecture, and the names, order and
// values of its tensors.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/train/files/gguf_file.h"

namespace trainctl::gguf {

/// What a tensor's values become.
struct Place {
  std::string name;
  bool is_transposed = false;  ///< [in, out] in the model folder (GPT-2)
  /// Heads whose rows llama.cpp has in pairs, row i and i + half of a head side by side; 0: as they are.
  int64_t paired_heads = 0;
  float added = 0;  ///< Gemma's norms multiply with 1 + weight, which llama.cpp stores as one number
};

class Model {
 public:
  /// `config`: config.json. SpecError (--format) for a model_type, or a value, that this format does not have.
  explicit Model(const nlohmann::json& config);

  const std::string& architecture() const { return architecture_; }
  std::vector<std::pair<std::string, Setting>> settings() const;
  /// Nothing: llama.cpp has no such tensor, or computes it. SpecError (--format) for an unknown name.
  std::optional<Place> place_of(const std::string& name) const;
  /// Factors of the rotary frequencies, the tensor rope_freqs.weight; empty: none.
  std::vector<float> rotary_factors() const;
  /// Lines for the user about what llama.cpp does not compute as the model does.
  std::vector<std::string> notes() const;

 private:
  using Settings = std::vector<std::pair<std::string, Setting>>;

  void add_gpt2(Settings& all) const;
  void add_decoder(Settings& all) const;
  void add_rope_scaling(Settings& all) const;
  std::optional<Place> place_in_gpt2(const std::string& name) const;
  std::optional<Place> place_in_decoder(const std::string& name) const;
  int64_t whole(const char* field) const;
  double real(const char* field, double fallback) const;
  int64_t heads() const;
  int64_t key_heads() const;
  int64_t head_size() const;
  const nlohmann::json& rotary() const;
  std::string rotary_type() const;
  double rotary_base() const;
  bool is_gemma() const { return architecture_.starts_with("gemma"); }

  const nlohmann::json& config_;
  std::string type_, architecture_;
};

}  // namespace trainctl::gguf
