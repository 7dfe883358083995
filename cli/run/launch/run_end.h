// How a run ended: for its own last line, and for commands that report it later.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "launcher/live_status.h"
#include "launcher/run_directory.h"
#include "launcher/supervisor.h"

namespace trainctl {

/// Progress of a network's training at the end of a run.
struct RunResult {
  int64_t step = 0, steps = 0;     ///< finished, and of the whole job; 0: unknown
  std::optional<float> loss = {};  ///< loss of the last finished step; nullopt: forward only
  Metrics metrics = {};            ///< metrics of that step
  /// The step of the last checkpoint that was written; 0: none was. nullopt: the job writes none.
  std::optional<int64_t> saved_step = {};
  std::string unsaved = {};  ///< why the last state, or the final weights, are not saved; "" if they are, or need not be
};

struct RunEnd {
  std::string ending;  ///< "done", "failed", "stopped by SIGINT at the end of step 12"
  double seconds = 0;
  int exit_code = 0;
  std::string report = {};   ///< further lines, from the workload
  std::string failure = {};  ///< lines about the first cause, or about what was not saved; empty if nothing failed
  RunResult result = {};
};

RunEnd run_end(const Outcome& outcome, const RunResult& result);

/// The text of outcome.json: `outcome` (failure_report.h), and the result's step, steps, loss and metrics.
std::string with_result(const std::string& outcome, const RunResult& result);

/// From outcome.json and error.json; nullopt if the launcher did not write them.
std::optional<RunEnd> read_run_end(const RunDirectory& directory);

}  // namespace trainctl
