// Hugging Face models under the names that llama.cpp uses: the settings of an architecture, and the names, order and
// values of its tensors.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/train/files/gguf_file.h"

namespace trainctl {

/// The name of a tensor in the file, and the conversion of its values.
struct GgufPlace {
  std::string name;
  bool is_transposed = false;  ///< [in, out] in the model folder (GPT-2)
  /// Number of heads whose rows llama.cpp interleaves: row i is followed by row i + half of the head; 0: none.
  int64_t paired_heads = 0;
  float added = 0;  ///< Gemma's norms multiply with 1 + weight, which llama.cpp stores as one number
};

class GgufModel {
 public:
  /// `config`: config.json. Throws SpecError (--format) for a model_type, or a value, that this format does not have.
  explicit GgufModel(const nlohmann::json& config);

  const std::string& architecture() const { return architecture_; }
  std::vector<std::pair<std::string, GgufSetting>> settings() const;
  /// The place of a tensor of the model folder in the file; nullopt if llama.cpp has no such tensor, or computes it.
  /// Throws SpecError (--format) for an unknown name.
  std::optional<GgufPlace> place_of(const std::string& name) const;
  /// Factors of the rotary frequencies, the tensor rope_freqs.weight; empty: none.
  std::vector<float> rotary_factors() const;
  /// Lines for the user about differences between the computations of llama.cpp and those of the model.
  std::vector<std::string> notes() const;

 private:
  using Settings = std::vector<std::pair<std::string, GgufSetting>>;

  void add_gpt2(Settings& all) const;
  void add_decoder(Settings& all) const;
  void add_rope_scaling(Settings& all) const;
  std::optional<GgufPlace> place_in_gpt2(const std::string& name) const;
  std::optional<GgufPlace> place_in_decoder(const std::string& name) const;
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

}  // namespace trainctl
