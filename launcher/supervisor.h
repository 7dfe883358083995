// Runs a job's ranks to their end on one event loop: signals, a tick, the ranks' output. Carries out the decisions of
// Supervision on real processes.
#pragma once

#include <boost/asio/io_context.hpp>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/binding.h"
#include "launcher/cluster.h"
#include "launcher/first_cause.h"
#include "launcher/log_files.h"
#include "launcher/rank_runner.h"
#include "launcher/run_directory.h"
#include "launcher/spawn.h"
#include "launcher/supervision.h"

namespace trainctl {

/// The ranks to start, and callbacks. They run on the loop's thread, which is the caller's.
struct Launch {
  Cluster cluster;
  RunDirectory directory;
  /// The command of a rank; its output goes to its folder. OMP_NUM_THREADS is set to its number of threads unless the
  /// environment has it already. `attempt` counts from 0 to limits.max_restarts.
  std::function<ProcessCommand(const RankPlace& place, int attempt)> command;
  Supervision::Limits limits = {};
  LogLimits log_limits = {};
  /// One per place, from bindings() of binding.h; empty: no rank is bound, and all share the cores equally.
  std::vector<RankBinding> bindings = {};

  // All members below are optional.

  /// Asks the ranks, without a signal, to stop after a common step; they receive no signal until grace is over.
  /// If unset, the user's first signal goes to their process groups: SIGUSR1 unchanged, others as SIGTERM.
  std::function<void()> ask_to_stop = {};
  /// Handles SIGUSR1. If unset, SIGUSR1 asks the ranks to stop.
  std::function<void()> on_user_signal = {};
  /// The step after which the ranks ended on request; nullopt if they reached the job's end. Called once all ranks
  /// have ended, and only if ask_to_stop is set.
  std::function<std::optional<int64_t>()> stopped_at = {};
  /// A rank's progress; nullopt: it reports none, so its silence means nothing. If unset, no rank is ever considered
  /// silent.
  std::function<std::optional<RankProgress>(int rank)> progress = {};
  /// All ranks have ended and will restart: recreate their shared resources here. `attempt` as in `command`.
  std::function<void(int attempt)> on_restart = {};

  /// A rank on its own has ended and will restart alone: notify the others.
  std::function<void(int rank)> on_rejoin = {};

  std::function<void(int rank, std::string_view line)> on_line = {};        ///< line of its stdout
  std::function<void(int rank, std::string_view line)> on_error_line = {};  ///< line of its stderr
  std::function<void(int rank, int pid)> on_rank_started = {};
  std::function<void(int rank, bool failed)> on_rank_ended = {};  ///< called before the launcher reacts
  std::function<std::string(int rank)> doing = {};                ///< "step 412, all_reduce grad.0"
  std::function<void()> on_tick = {};                             ///< about 40 times a second
  std::function<void(std::string_view message)> on_notice = {};   ///< line to show to the user immediately
};

/// An attempt that failed and was followed by another.
struct FailedAttempt {
  Cause cause;
  std::string message;  ///< the cause in one line
  double seconds = 0;   ///< since the start of the run
};

struct Outcome {
  int exit_code = 0;                       ///< 0, kExitRankFailed, or 128 + signal
  int signal = 0;                          ///< the user's signal that ended the run; 0: none
  std::optional<int64_t> stopped_at_step;  ///< ended at the end of this step, on request
  double seconds = 0;
  bool disk_hangs = false;  ///< files in the run's folder can be neither written nor read
  Cause cause;
  std::vector<RankReport> reports;  ///< from the last attempt
  std::vector<FailedAttempt> failed_attempts;
};

/// Starts all ranks and returns when all have ended. SIGINT, SIGTERM, SIGHUP and SIGUSR1, which it unblocks, ask the
/// ranks to stop unless they were ignored when the program started; a second signal kills the ranks. When a rank fails, all are stopped, and restarted while restarts are
/// left. Runs `loop` and thereby its other services (the store). Throws EnvError if it cannot start.
Outcome supervise(const Launch& launch, RankRunner& ranks, boost::asio::io_context& loop);
/// The same for ranks that are processes of this host.
Outcome supervise(const Launch& launch, ProcessRunner& runner, boost::asio::io_context& loop);

}  // namespace trainctl
