// Records how a run ended, for its own last line and for commands that report it later.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cli/run/launch/validation_results.h"
#include "launcher/live_status.h"
#include "launcher/run_directory.h"
#include "launcher/supervisor.h"

namespace trainctl {

/// Progress of a network's training at the end of a run.
struct RunResult {
  int64_t step = 0, steps = 0;     ///< finished, and of the whole job; 0: unknown
  std::optional<float> loss = {};  ///< loss of the last finished step; nullopt: forward only
  Metrics metrics = {};            ///< metrics of that step
  int64_t skipped_steps = 0;       ///< steps that changed neither weights nor optimizer states
  /// The step of the last checkpoint that was written; 0: none was. nullopt: the job writes none.
  std::optional<int64_t> saved_step = {};
  ValidationResults validation = {};
  std::string unsaved =
      {};  ///< why the last state, or the final weights, are not saved; "" if they are, or need not be
};

struct RunEnd {
  std::string
      ending;  ///< "done", "stopped early at step 255 of 680", "failed", "stopped by SIGINT at the end of step 12"
  double seconds = 0;
  int exit_code = 0;
  std::string report = {};   ///< further lines, from the workload
  std::string failure = {};  ///< lines about the first cause, or about what was not saved; empty if nothing failed
  RunResult result = {};
};

/// "done after 1m12s, validation accuracy 0.9690": how a run ended, for its last line. `duration`: "1m12s". The reason
/// of an early stop and the results follow.
std::string end_text(const RunEnd& end, const std::string& duration);

RunEnd run_end(const Outcome& outcome, const RunResult& result);

/// The text of outcome.json: `outcome` (failure_report.h), and the result's step, steps, loss and metrics.
std::string with_result(const std::string& outcome, const RunResult& result);

/// From outcome.json and error.json; nullopt if the launcher did not write them.
std::optional<RunEnd> read_run_end(const RunDirectory& directory);

}  // namespace trainctl
