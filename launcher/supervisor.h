// Runs a job's ranks to their end on one event loop: signals, a tick, the ranks' output. Carries out the decisions of
// Supervision on real processes.
#pragma once

#include <boost/asio/io_context.hpp>
#include <optional>
#include <string>
#include <vector>

#include "launcher/binding.h"
#include "launcher/cluster.h"
#include "launcher/first_cause.h"
#include "launcher/log_files.h"
#include "launcher/rank_program.h"
#include "launcher/rank_runner.h"
#include "launcher/run_directory.h"
#include "launcher/spawn.h"
#include "launcher/spot_watch.h"
#include "launcher/supervision.h"

namespace trainctl {

/// The ranks to start, the program that they run, and the caller that follows them; both must outlive the launch.
struct Launch {
  Cluster cluster;
  RunDirectory directory;
  RankProgram& program;
  LaunchObserver& observer;
  /// The program stops after a step that is common to all ranks (RankProgram::stop_after_step); they receive no signal
  /// until grace is over. Otherwise the user's first signal goes to their process groups: SIGUSR1 unchanged, others as
  /// SIGTERM.
  bool stops_after_step = false;
  Supervision::Limits limits = {};
  SpotSettings spot = {};  ///< a notice asks the ranks to stop, as SIGTERM does
  LogLimits log_limits = {};
  /// One per place, from bindings() of binding.h; empty: no rank is bound, and all share the cores equally.
  std::vector<RankBinding> bindings = {};
};

/// An attempt that failed and was followed by another.
struct FailedAttempt {
  Cause cause;
  std::string message;  ///< the cause in one line
  double seconds = 0;   ///< since the start of the run
};

struct Outcome {
  int exit_code = 0;                       ///< 0, kExitRankFailed, kExitRequeue, or 128 + signal
  int signal = 0;                          ///< the user's signal that ended the run; 0: none
  std::string spot_notice;                 ///< the announcement that ended the run; empty: there was none
  std::optional<int64_t> stopped_at_step;  ///< ended at the end of this step, on request
  double seconds = 0;
  bool disk_hangs = false;  ///< files in the run's folder can be neither written nor read
  Cause cause;
  std::vector<RankReport> reports;  ///< from the last attempt
  std::vector<FailedAttempt> failed_attempts;
};

/// Starts all ranks and returns when all have ended. SIGINT, SIGTERM, SIGHUP and SIGUSR1, which it unblocks, ask the
/// ranks to stop unless they were ignored when the program started; a second signal kills the ranks. When a rank fails,
/// all are stopped, and restarted while restarts are left. Runs `loop` and thereby its other services (the store).
/// Throws EnvError if it cannot start.
Outcome supervise(const Launch& launch, RankRunner& ranks, boost::asio::io_context& loop);
/// The same for ranks that are processes of this host.
Outcome supervise(const Launch& launch, ProcessRunner& runner, boost::asio::io_context& loop);

}  // namespace trainctl
