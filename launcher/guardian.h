// A small process that outlives the launcher by a moment: it watches a pipe, and when the launcher is
// gone, however it ended, kills the process groups that the launcher had started, and whatever left
// these (stragglers.h). PR_SET_PDEATHSIG reaches a rank alone; this reaches what the rank itself started.
//
//   pipe:  message*          message = int32, host order: pid (a group started) | -pid (it ended)
#pragma once

#include <string>

namespace trainctl {

class Guardian {
 public:
  /// Forks it. `max_groups`: how many groups may run at one time. `mark`: of all that they start. Throws EnvError.
  Guardian(int max_groups, const std::string& mark);
  Guardian(const Guardian&) = delete;
  Guardian& operator=(const Guardian&) = delete;
  /// Lets it go; it kills what is still registered or marked, and is waited for.
  ~Guardian();

  void watch(int pid);
  void forget(int pid);
  int pid() const { return pid_; }

 private:
  int pid_ = -1;
  int pipe_ = -1;
};

}  // namespace trainctl
