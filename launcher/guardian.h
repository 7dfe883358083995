// A small process that outlives the launcher by a moment. It watches a pipe; when the launcher has ended, for whatever
// reason, it kills the process groups that the launcher started and the processes that left them (stragglers.h).
// PR_SET_PDEATHSIG reaches only the rank; the guardian also reaches what the rank started.
//
//   pipe:  message*          message = int32, host order: pid (a group started) | -pid (it ended)
#pragma once

#include <string>

namespace trainctl {

class Guardian {
 public:
  /// Forks it. `max_groups`: the most groups that run at one time. `mark`: see stragglers.h. Throws EnvError.
  Guardian(int max_groups, const std::string& mark);
  Guardian(const Guardian&) = delete;
  Guardian& operator=(const Guardian&) = delete;
  /// Closes the pipe and waits while the guardian kills what is still registered or marked.
  ~Guardian();

  void watch(int pid);
  void forget(int pid);
  int pid() const { return pid_; }

 private:
  int pid_ = -1;
  int pipe_ = -1;
};

}  // namespace trainctl
