// Controls the ranks of a run: processes of this host (local_ranks.h), or of other hosts through their agents
// (hosts/agent_ranks.h). It carries out the decisions of Supervision, and reports events.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "launcher/cluster.h"
#include "launcher/supervision.h"

namespace trainctl {

class RankRunner {
 public:
  /// Called by the event loop, or by a function of this class.
  struct Events {
    std::function<void(int rank)> started;
    std::function<void(int rank, std::string why)> failed_to_start;
    std::function<void(int rank, RankReport report)> ended;
    std::function<void(const std::string& message)> notice;  ///< for the user
  };

  virtual ~RankRunner() = default;

  /// Call it once, before the other functions.
  virtual void listen(Events events) = 0;
  /// `started` or `failed_to_start` follows, perhaps before it returns.
  virtual void start(const RankPlace& place, int attempt) = 0;
  /// Sends a signal to the rank and all processes that it started.
  virtual void signal(int rank, int signal) = 0;
  /// Makes all ranks end after the same step (RankProgram::stop_after_step).
  virtual void stop_after_step() = 0;
  /// Returns whether the rank's host has responded recently; if not, its progress is unknown.
  virtual bool is_heard(int /*rank*/) const { return true; }
  /// Returns whether its process is stopped by SIGSTOP or a debugger.
  virtual bool is_frozen(int rank) = 0;
  /// The error that a rank, possibly still running, wrote to the run's folder.
  virtual std::optional<RankError> error_of(int rank) = 0;
  /// Called when all ranks have ended and will start again as this attempt: removes everything that the last attempt
  /// left, before start() starts a rank.
  virtual void restart(int attempt) = 0;
  /// Call it often.
  virtual void look() = 0;
  /// Call it when all ranks have ended.
  virtual void end() = 0;
  /// Returns whether files in the run's folder can be neither written nor read.
  virtual bool disk_hangs() const = 0;
};

}  // namespace trainctl
