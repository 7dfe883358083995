// Starts processes, signals them, and observes how they ended: the launcher's only access to the process table, so that
// its logic can be tested on a fake.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "launcher/stragglers.h"

namespace trainctl {

struct ProcessCommand {
  std::vector<std::string> argv;                                 ///< argv[0] is looked up in PATH unless it has a slash
  std::vector<std::pair<std::string, std::string>> environment;  ///< added to the launcher's; replaces equal names
  std::string working_dir;                                       ///< empty: the launcher's
  int stdout_fd = -1, stderr_fd = -1;                            ///< -1: /dev/null
  std::vector<int> cpus;                                         ///< CPUs it may run on; empty: the launcher's
  std::vector<int> inherited_fds;  ///< stay open under the same numbers; all others are closed
  std::string mark = {};           ///< set in the environment of all its descendants; empty: only its group is known
  double leftover_seconds = 10;    ///< after exit with 0: time that leftover processes have to end
  std::string script = {};         ///< file that the program reads; start() names it if it does not exist; may be empty
};

/// Tells how a process ended.
struct ProcessEnd {
  int pid = -1;
  bool signaled = false;
  int code = 0;  ///< exit status, or the signal's number
  /// It exited with 0, but processes that it had left failed, or had to be killed: " and left processes running, which
  /// were killed: sh (pid 17)". Empty: it left none.
  std::string left = {};
};

/// Processes left behind by one that exited with 0: "sh (pid 17)".
struct LeftProcesses {
  int pid = -1;
  std::string left;
};

class ProcessRunner {
 public:
  virtual ~ProcessRunner() = default;

  /// Starts it in a new process group with /dev/null as stdin. Returns its pid.
  /// Throws EnvError when it cannot be started (no such program, no permission, too many processes).
  virtual int start(const ProcessCommand& command) = 0;

  /// Sends `signal` to the process and everything in its group.
  virtual void signal_group(int pid, int signal) = 0;

  /// Returns whether the process is stopped by SIGSTOP or a debugger.
  virtual bool is_frozen(int pid) = 0;

  /// Processes that ended since the last call; does not block. The rest of their groups has been killed
  /// when this returns. A process that exits with 0 without being signaled has not ended before its leftovers have, or
  /// its leftover_seconds are over. Call it often.
  virtual std::vector<ProcessEnd> reap() = 0;

  /// Processes whose leftovers reap() waits for; each is returned once.
  virtual std::vector<LeftProcesses> new_leftovers() { return {}; }
};

/// Runs real processes. They are killed (SIGKILL) when the thread that started them ends for any reason.
/// Processes that they leave become children of this process (PR_SET_CHILD_SUBREAPER), which observes how they end.
/// Throws EnvError if /proc, where such processes are found, is not mounted.
class PosixProcessRunner : public ProcessRunner {
 public:
  PosixProcessRunner();
  PosixProcessRunner(const PosixProcessRunner&) = delete;
  PosixProcessRunner& operator=(const PosixProcessRunner&) = delete;
  /// Kills the processes that still run, and waits for them.
  ~PosixProcessRunner() override;

  int start(const ProcessCommand& command) override;
  void signal_group(int pid, int signal) override;
  bool is_frozen(int pid) override;
  std::vector<ProcessEnd> reap() override;
  std::vector<LeftProcesses> new_leftovers() override;

 private:
  struct Running {
    int pid;
    std::string mark;
    double leftover_seconds;
    bool is_asked = false;     ///< it was sent a signal that ends it
    double exited = 0;         ///< steady seconds at which it was seen to have exited with 0; 0: it has not
    bool is_reported = false;  ///< new_leftovers() has returned it
    std::optional<std::vector<Leftover>> leftovers = {};  ///< still running; nullopt: not searched for yet
    std::vector<std::string> failures = {};               ///< failed leftovers: "sh (pid 17) exited with code 3"
  };
  static void note_ended_leftovers(Running& running);
  void look_for_leftovers();
  void reap_orphans();

  std::vector<Running> running_;
  std::vector<int> killed_groups_;  ///< groups of processes that have ended; other members may not have
  double looked_ = 0;               ///< when leftovers were last searched for
  double orphans_ = 0;              ///< when orphans were last reaped
};

/// Returns whether a process is stopped by SIGSTOP or a debugger.
bool process_is_frozen(int pid);

/// "SIGKILL"; "signal 99" if it has no name.
std::string signal_name(int signal);

/// "exited with code 3", "was killed by SIGSEGV".
std::string describe(const ProcessEnd& end);

}  // namespace trainctl
