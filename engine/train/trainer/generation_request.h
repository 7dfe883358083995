// The texts that `trainctl generate` asks for. The launcher writes it to the folder of the job; each rank reads it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/model/generation.h"
#include "engine/train/trainer/sampling.h"

namespace trainctl {

enum class GenerationFormat : uint8_t {
  text,   ///< only the generated text, while it is generated
  pairs,  ///< each prompt with its text
  json,   ///< one JSON object per prompt, on a line
};

struct GenerationPrompt {
  std::string text;
  std::vector<int32_t> tokens;  ///< at least one
};

struct GenerationRequest {
  std::vector<GenerationPrompt> prompts;
  SamplingSettings sampling;
  int64_t max_tokens = 0;  ///< generated tokens per text
  GenerationSize size;     ///< no prompt has more than size.positions tokens
  std::vector<int32_t> end_tokens;
  std::vector<std::string> stops;
  std::string tokenizer;  ///< empty: tokens are bytes
  GenerationFormat format = GenerationFormat::text;

  std::string to_json() const;
  static GenerationRequest of_json(const std::string& text);
};

inline constexpr const char* kGenerationRequestName = "generation.json";

}  // namespace trainctl
