// Finds the checkpoint that the user means.
#pragma once

#include <string>

#include "engine/train/checkpoint/checkpoint_directory.h"
#include "engine/train/checkpoint/verify_checkpoint.h"

namespace CLI {
class App;
}

namespace trainctl {

/// The folder or checkpoint that an argument of the command line names.
struct CheckpointPlace {
  std::string folder;  ///< folder of checkpoints; "" if the argument names a single `checkpoint`
  std::string checkpoint;
};

/// `name`: a checkpoint's folder; a folder of checkpoints; or a run as find_run() takes it, which stands for the folder
/// of its checkpoints. Throws SpecError.
CheckpointPlace find_checkpoints(const std::string& name, const std::string& log_dir);

/// The path of a checkpoint: the named one, complete or not, or the newest complete one. `verified`: damaged ones are
/// passed over too, and the named one must be whole: for those that use its numbers. Those that are passed over are
/// named on stderr. Throws SpecError if there is none, EnvError if the named one is damaged.
std::string find_checkpoint(const std::string& name, const std::string& log_dir, bool verified = false);

/// Reads every byte of it, and notes in its folder that it is whole, or no longer.
Verification verify_and_record(const std::string& checkpoint);

/// Whether the word is meant as a file of tensors rather than as a checkpoint.
bool is_safetensors(const std::string& name);

/// --log-dir of all these commands.
void add_log_dir(CLI::App& command, std::string& log_dir);

}  // namespace trainctl
