// Callback interfaces that the caller of the launcher implements: RankProgram is the program of the ranks, and a
// LaunchObserver follows the launch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "launcher/cluster.h"
#include "launcher/spawn.h"
#include "launcher/supervision.h"

namespace trainctl {

/// The program of the ranks, as the launcher starts, observes and stops it. The defaults suit a program that shares
/// nothing with the launcher. Calls come from the loop's thread.
class RankProgram {
 public:
  virtual ~RankProgram() = default;

  /// The command of a rank; its output goes to its folder. OMP_NUM_THREADS is set to its number of threads unless the
  /// environment has it already. `attempt` counts from 0 to limits.max_restarts.
  virtual ProcessCommand command(const RankPlace& place, int attempt) = 0;

  // Called on events of ranks.
  virtual void started(int /*rank*/, int /*pid*/) {}
  /// Called before the launcher reacts.
  virtual void ended(int /*rank*/, bool /*failed*/) {}
  /// An independent rank (Limits::independent_ranks) has ended and will restart by itself: notify the others.
  virtual void rejoins(int /*rank*/) {}

  // Queries of the ranks' progress.
  /// "step 412, all_reduce grad.0"; "" if it is not known.
  virtual std::string doing(int /*rank*/) { return ""; }
  /// A rank's progress; nullopt: it reports none, so its silence means nothing.
  virtual std::optional<RankProgress> progress(int /*rank*/) { return std::nullopt; }

  // Called on signals of the user.
  /// Handles SIGUSR1. Returns false if the ranks should be asked to stop instead.
  virtual bool save_now() { return false; }
  /// Used only with Launch::stops_after_step: makes all ranks stop after a common step.
  virtual void stop_after_step() {}
  /// Used only with Launch::stops_after_step, once all ranks have ended. Returns the step after which they stopped, or
  /// nullopt if they reached the job's end.
  virtual std::optional<int64_t> stopped_at() { return std::nullopt; }
};

/// Follows a launch. The defaults ignore everything. Calls come from the loop's thread.
class LaunchObserver {
 public:
  virtual ~LaunchObserver() = default;

  virtual void on_rank_started(int /*rank*/, int /*pid*/) {}
  /// Called when all ranks have ended and will restart; recreates the resources that they share. `attempt` as in
  /// RankProgram.
  virtual void on_restart(int /*attempt*/) {}
  /// Receives a line of a rank's stdout, or of its stderr if `is_error`.
  virtual void on_line(int /*rank*/, std::string_view /*line*/, bool /*is_error*/) {}
  /// Receives a line to show to the user immediately.
  virtual void on_notice(std::string_view /*message*/) {}
  /// Called about 40 times a second.
  virtual void on_tick() {}
};

}  // namespace trainctl
