// How a run came to its end: for its own last line, and for those who read of it later.
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
  std::string report = {};   ///< lines that follow, of what was launched
  std::string failure = {};  ///< lines that name the first cause; empty where nothing failed
};

RunEnd run_end(const Outcome& outcome);

/// From outcome.json and error.json; nothing where the launcher did not come to write them.
std::optional<RunEnd> read_run_end(const RunDirectory& directory);

}  // namespace trainctl
