// The prompts of `trainctl generate` and of validation.generate, as tokens.
#pragma once

#include <string>
#include <vector>

#include "engine/model_folder/generation_config.h"
#include "engine/spec/job_spec.h"
#include "engine/train/trainer/generation_request.h"

namespace trainctl {

/// transformers' default, for models that sample.
inline constexpr int64_t kDefaultTopK = 50;

struct PromptOptions {
  std::vector<std::string> texts;
  std::string file;  ///< more prompts; empty: none
  bool chat = false;
  bool may_chat = false;  ///< conversations in the file turn `chat` on
  std::string system;
  std::vector<std::string> stops;
};

/// The tokenizer that `option` names, or that of the data set, or of the model folder; empty: tokens are bytes, as in a
/// data set of type text without a tokenizer. Throws SpecError if none is known.
std::string tokenizer_of(const JobSpec& spec, const std::string& option, const std::string& model_folder);

/// Adds prompts, stops, and the tokens that end a text, with the tokenizer of the request. Throws SpecError for options
/// that do not fit together, EnvError for files.
void add_prompts(PromptOptions options, GenerationRequest& request);

/// The folder of the weights that the job starts from; empty if there is none.
std::string model_folder_of(const JobSpec& spec);

/// Texts at a time, and the most tokens of a text with its prompt. Throws SpecError if a prompt is too long for the
/// model.
GenerationSize size_of(const JobSpec& spec, const GenerationRequest& request, const GenerationConfig& config);

}  // namespace trainctl
