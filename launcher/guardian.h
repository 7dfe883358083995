// Two small processes that outlive the launcher by a moment. Each watches a pipe; when the launcher has ended, for
// whatever reason, they kill the process groups that the launcher started and the processes that left them
// (stragglers.h). PR_SET_PDEATHSIG reaches only the rank; the guardians also reach what the rank started. There are two
// because one may be killed as well: the other takes over until the launcher has replaced it.
//
//   pipe:  message*          message = int32, host order: pid (a group started) | -pid (it ended)
#pragma once

#include <array>
#include <string>
#include <vector>

namespace trainctl {

class Guardian {
 public:
  /// Forks them. `max_groups`: largest number of groups at a time. `mark`: see stragglers.h. Throws EnvError.
  Guardian(int max_groups, const std::string& mark);
  Guardian(const Guardian&) = delete;
  Guardian& operator=(const Guardian&) = delete;
  /// Closes the pipes and waits while the guardians kill all processes that are still registered or marked.
  ~Guardian();

  void watch(int pid);
  void forget(int pid);
  /// Replaces guardians that have ended. Call it when a child has ended, and again if
  /// it returns false because no process could be created.
  bool replace_dead();

 private:
  struct Process {
    int pid = -1;  ///< -1: none
    int pipe = -1;
  };

  bool start(Process& process) const;
  void send(int message) const;

  const size_t max_groups_;
  const std::string mark_;
  std::vector<int> groups_;
  std::array<Process, 2> processes_;
};

}  // namespace trainctl
