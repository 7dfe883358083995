// The files of a model folder other than the weights: config.json, and those of the tokenizer.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/spec/job_spec.h"

namespace trainctl {

/// The config.json for the weights of a job, exported with that name map. It is the one of `source`, the model folder
/// from which the weights came, with the fields that the job changes; or, if `source` is empty, it is made from the
/// job's layers, for the maps gpt2 and llama. `dtype`: type of the weights, "float32" or "bfloat16". Throws SpecError.
std::string config_for_export(const JobSpec& job, std::string_view map, const std::string& source,
                              std::string_view dtype);

/// Files of a model folder that an export copies: the generation config, the tokenizer, the chat template.
std::vector<std::string> companion_files(const std::string& folder);

}  // namespace trainctl
