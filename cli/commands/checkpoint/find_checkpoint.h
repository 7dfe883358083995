// Finds the checkpoint that the user means.
#pragma once

#include <string>
#include <vector>

#include "engine/spec/job_spec.h"
#include "engine/train/checkpoint/checkpoint_directory.h"
#include "engine/train/checkpoint/verify_checkpoint.h"

namespace CLI {
class App;
}

namespace trainctl {

/// The folder of checkpoints or the single checkpoint that a command-line argument names.
struct CheckpointPlace {
  std::string folder;  ///< folder of checkpoints; "" if the argument names a single `checkpoint`
  std::string checkpoint;
};

/// Resolves `name`: a checkpoint's folder, a folder of checkpoints, a run as accepted by find_run(), which stands
/// for the folder of its checkpoints, or "best": the best checkpoint of the newest run that has any. Throws SpecError.
CheckpointPlace find_checkpoints(const std::string& name, const std::string& log_dir);

/// Returns the path of a checkpoint: the named one, complete or not, or the newest complete one. With `verified`, for
/// commands that read its values, damaged checkpoints are skipped too and the named one must be whole. Skipped ones are
/// reported on stderr. Throws SpecError if there is none, EnvError if the named one is damaged.
std::string find_checkpoint(const std::string& name, const std::string& log_dir, bool verified = false);

/// The metric by which one checkpoint of a job is better than another.
std::string metric_of_best(const TrainSpec& train);

/// The path of the complete checkpoint whose validation had the best value of the metric; "": none has one.
std::string best_checkpoint(const std::vector<CheckpointEntry>& entries, const std::string& metric);

/// Reads every byte of the checkpoint and records in its folder whether it is whole.
Verification verify_and_record(const std::string& checkpoint);

/// Returns whether the word names a file of tensors rather than a checkpoint.
bool is_safetensors(const std::string& name);

/// Adds --log-dir, which all these commands have.
void add_log_dir(CLI::App& command, std::string& log_dir);

}  // namespace trainctl
