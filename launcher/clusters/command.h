// Runs commands of a cluster manager to their end: sbatch, squeue, scancel.
#pragma once

#include <string>
#include <vector>

namespace trainctl::clusters {

struct CommandEnd {
  int code = 0;  ///< exit code; 128 + the signal if one ended it
  std::string out, err;
};

/// Throws EnvError if the program does not exist, or does not end within `seconds`.
CommandEnd run_command(const std::vector<std::string>& words, double seconds = 60);

}  // namespace trainctl::clusters
