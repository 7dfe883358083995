// Where the ranks of a run are and how they are reached: processes of this host (local_ranks.h), or of others through
// their agents (hosts/agent_ranks.h). It carries out what Supervision decides, and tells what happens.
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

  /// Once, before the others.
  virtual void listen(Events events) = 0;
  /// `started` or `failed_to_start` follows, perhaps before it returns.
  virtual void start(const RankPlace& place, int attempt) = 0;
  /// To the rank and all that it started.
  virtual void signal(int rank, int signal) = 0;
  /// Whether its process is stopped, by SIGSTOP or a debugger.
  virtual bool is_frozen(int rank) = 0;
  /// The error that the rank, which may not have ended, wrote about its failure; from the run's folder.
  virtual std::optional<RankError> error_of(int rank) = 0;
  /// All ranks have ended, and will start again as this attempt: nothing of the last one is left when start() starts
  /// one.
  virtual void restart(int attempt) = 0;
  /// Call it often.
  virtual void look() = 0;
  /// All ranks have ended.
  virtual void end() = 0;
  /// The run's folder: files there can be neither written nor read.
  virtual bool disk_hangs() const = 0;
};

}  // namespace trainctl
