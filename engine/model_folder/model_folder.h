// Model folders in Hugging Face format: config.json, model.safetensors (or an index of several), the tokenizer's files.
// `trainctl init --from` makes a job of one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/model_folder/finetune.h"

namespace trainctl {

struct FolderJob {
  std::string text;                ///< the job file
  std::vector<std::string> notes;  ///< fields that are left out or unknown
};

/// The job for the model of a folder, or for its fine-tuning. `from`: the folder as the job names it. Throws EnvError
/// if the folder has no config.json, SpecError for an unknown model_type or a value that no layer of trainctl computes.
FolderJob job_of_folder(const std::string& folder, const std::string& from, const Finetune& tuning = {});

/// The folder that contains weights: `path` itself, or the folder of the file.
std::string folder_of_weights(const std::string& path);
/// The name map of the model in a folder, by its model_type. Throws the same errors as job_of_folder.
std::string_view map_of_folder(const std::string& folder);

}  // namespace trainctl
