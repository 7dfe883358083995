// Starting processes, signalling them and learning how they ended: the launcher's only way to the
// process table, so that its logic is tested on a fake.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace trainctl {

struct ProcessCommand {
  std::vector<std::string> argv;                                 ///< argv[0] is looked up in PATH unless it has a slash
  std::vector<std::pair<std::string, std::string>> environment;  ///< added to ours, or in place of it
  std::string working_dir;                                       ///< empty: ours
  int stdout_fd = -1, stderr_fd = -1;                            ///< -1: /dev/null
  std::vector<int> cpus;                                         ///< on which it may run; empty: on ours
  std::vector<int> inherited_fds;  ///< stay open under the same numbers; all others are closed
};

/// How a process ended.
struct ProcessEnd {
  int pid = -1;
  bool signaled = false;
  int code = 0;  ///< exit status, or the signal's number
};

class ProcessRunner {
 public:
  virtual ~ProcessRunner() = default;

  /// Starts it in a process group of its own, stdin at /dev/null. Returns its pid.
  /// Throws EnvError when it cannot be started (no such program, no permission, too many processes).
  virtual int start(const ProcessCommand& command) = 0;

  /// To the process and everything in its group.
  virtual void signal_group(int pid, int signal) = 0;

  /// Whether the process is stopped: by SIGSTOP, or by a debugger.
  virtual bool is_frozen(int pid) = 0;

  /// Processes that ended since the last call; does not wait. What an ended process left behind in its
  /// group has been killed when this returns.
  virtual std::vector<ProcessEnd> reap() = 0;
};

/// Real processes. They die (SIGKILL) when the thread that started them does, however it ends.
class PosixProcessRunner : public ProcessRunner {
 public:
  PosixProcessRunner() = default;
  PosixProcessRunner(const PosixProcessRunner&) = delete;
  PosixProcessRunner& operator=(const PosixProcessRunner&) = delete;
  /// Kills what still runs, and waits for it.
  ~PosixProcessRunner() override;

  int start(const ProcessCommand& command) override;
  void signal_group(int pid, int signal) override;
  bool is_frozen(int pid) override;
  std::vector<ProcessEnd> reap() override;

 private:
  std::vector<int> running_;
};

/// "SIGKILL"; "signal 99" where it has no name.
std::string signal_name(int signal);

/// "exited with code 3", "was killed by SIGSEGV".
std::string describe(const ProcessEnd& end);

}  // namespace trainctl
