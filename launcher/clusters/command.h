// Commands of a manager, run to their end: sbatch, squeue, scancel.
#pragma once

#include <string>
#include <vector>

namespace trainctl::clusters {

struct CommandEnd {
  int code = 0;  ///< exit code; 128 + the signal if one ended it
  std::string out, err;
};

/// Throws EnvError if the program is not there, or does not end within `seconds`.
CommandEnd run_command(const std::vector<std::string>& words, double seconds = 60);

}  // namespace trainctl::clusters
