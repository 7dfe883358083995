// How a run ended: for its own last line, and for commands that report it later.
#pragma once

#include <optional>
#include <string>

#include "launcher/run_directory.h"
#include "launcher/supervisor.h"

namespace trainctl {

struct RunEnd {
  std::string ending;  ///< "done", "failed", "stopped by SIGINT at the end of step 12"
  double seconds = 0;
  int exit_code = 0;
  std::string report = {};   ///< further lines, from the workload
  std::string failure = {};  ///< lines that name the first cause; empty if nothing failed
};

RunEnd run_end(const Outcome& outcome);

/// From outcome.json and error.json; nullopt if the launcher did not write them.
std::optional<RunEnd> read_run_end(const RunDirectory& directory);

}  // namespace trainctl
