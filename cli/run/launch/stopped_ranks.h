// Tracks which ranks' processes are stopped, by SIGSTOP or a debugger, and since when.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "launcher/spawn.h"

namespace trainctl {

class StoppedRanks {
 public:
  explicit StoppedRanks(std::function<bool(int pid)> is_frozen = process_is_frozen)
      : is_frozen_(std::move(is_frozen)) {}

  void started(int rank, int pid) { processes_[rank] = {pid, -1}; }
  void ended(int rank) { processes_.erase(rank); }

  /// Replaces the texts of stopped ranks by "stopped 12 s". `now` is in seconds of any steady clock. Looks at the
  /// processes at most once a second.
  void describe(std::vector<std::string>& texts, double now);

 private:
  struct Process {
    int pid = -1;
    double stopped_since = -1;  ///< -1: it is not stopped
  };

  void look(double now);

  std::function<bool(int pid)> is_frozen_;
  std::map<int, Process> processes_;  ///< by rank
  double looked_ = -1;
};

}  // namespace trainctl
