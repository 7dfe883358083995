// The prompts of `trainctl generate`, as tokens.
#pragma once

#include <string>
#include <vector>

#include "engine/spec/job_spec.h"
#include "engine/train/trainer/generation_request.h"

namespace trainctl {

/// transformers' default, for models that sample.
inline constexpr int64_t kDefaultTopK = 50;

struct PromptOptions {
  std::vector<std::string> texts;
  std::string file;  ///< more prompts; empty: none
  bool chat = false;
  std::string system;
  std::vector<std::string> stops;
};

/// The tokenizer that `option` names, or that of the data set, or of the model folder; empty: tokens are bytes, as in a
/// data set of type text without a tokenizer. SpecError if none is known.
std::string tokenizer_of(const JobSpec& spec, const std::string& option, const std::string& model_folder);

/// Adds prompts, stops, and the tokens that end a text, with the tokenizer of the request. SpecError for options that
/// do not fit together, EnvError for files.
void add_prompts(const PromptOptions& options, GenerationRequest& request);

}  // namespace trainctl
