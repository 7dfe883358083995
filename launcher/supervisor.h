// Runs a job's ranks to their end on one event loop: signals, a tick, their output, and the
// decisions of Supervision carried out on real processes.
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
#include "launcher/run_directory.h"
#include "launcher/spawn.h"
#include "launcher/supervision.h"

namespace trainctl {

/// What to start and whom to tell. Callbacks run on the loop's thread, which is the caller's.
struct Launch {
  Cluster cluster;
  RunDirectory directory;
  /// What a rank runs; its output goes to its folder. OMP_NUM_THREADS is set to its threads unless it is
  /// in the environment already. `attempt` counts from 0, and up to limits.max_restarts.
  std::function<ProcessCommand(const RankPlace& place, int attempt)> command;
  Supervision::Limits limits = {};
  LogLimits log_limits = {};
  /// One a place, from bindings() of binding.h; empty: no rank is bound, and all share the cores evenly.
  std::vector<RankBinding> bindings = {};

  // All that follows is optional.

  /// Tells the ranks, by a way of their own, to end after a step that all agree on; they get no signal until grace
  /// is over. Without it the user's first signal goes to their process groups: SIGUSR1 as it is, others as SIGTERM.
  std::function<void()> ask_to_stop = {};
  /// The step after which the ranks ended because they were asked to, or nothing where they went on to the job's
  /// end. Asked when none is left, and only where there is ask_to_stop.
  std::function<std::optional<int64_t>()> stopped_at = {};
  /// How far a rank is; nothing: it says nothing of itself, so that its silence means nothing. Without it no rank
  /// is ever called silent.
  std::function<std::optional<RankProgress>(int rank)> progress = {};
  /// All ranks are gone and start again; the place to make what they share anew. `attempt` as in `command`.
  std::function<void(int attempt)> on_restart = {};

  std::function<void(int rank, std::string_view line)> on_line = {};        ///< of its stdout
  std::function<void(int rank, std::string_view line)> on_error_line = {};  ///< of its stderr
  std::function<void(int rank, bool failed)> on_rank_ended = {};            ///< before anything is done about it
  std::function<std::string(int rank)> doing = {};                          ///< "step 412, all_reduce grad.0"
  std::function<void()> on_tick = {};                                       ///< some 40 times a second
  std::function<void(std::string_view message)> on_notice = {};             ///< for the user, now: "Ctrl-C again kills"
};

/// An attempt that failed and was followed by another.
struct FailedAttempt {
  Cause cause;
  std::string message;  ///< the cause in a line
  double seconds = 0;   ///< since the start of the run
};

struct Outcome {
  int exit_code = 0;                       ///< 0, kExitRankFailed, or 128 + signal
  int signal = 0;                          ///< that the user sent, and that ended the run; 0: none
  std::optional<int64_t> stopped_at_step;  ///< ended at the end of this step, on request
  double seconds = 0;
  Cause cause;
  std::vector<RankReport> reports;  ///< of the last attempt
  std::vector<FailedAttempt> failed_attempts;
};

/// Starts all ranks and returns when none is left. SIGINT, SIGTERM, SIGHUP and SIGUSR1 ask the ranks to stop;
/// a second one kills them. A rank that fails stops all, and starts them again while restarts are left. Runs
/// `loop`, and with it whatever else lives there (the store). Throws EnvError when it cannot even begin.
Outcome supervise(const Launch& launch, ProcessRunner& runner, boost::asio::io_context& loop);

}  // namespace trainctl
