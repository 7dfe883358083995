// Lets a command continue without its terminal: trainctl run --detach.
#pragma once

#include <functional>
#include <string>

namespace trainctl {

/// The part of a command that runs in a new session. Until let_go() it writes to the terminal and the command waits
/// for it.
class Background {
 public:
  explicit Background(int pipe) : pipe_(pipe) {}
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;
  ~Background();

  bool holds_on() const { return pipe_ >= 0; }
  /// The command shows `message` and exits with 0; output of this process goes to `log_fd` from now on.
  void let_go(const std::string& message, int log_fd);

 private:
  int pipe_;
};

/// Runs `work` in a child process with a new session, which the terminal's Ctrl-C and hangup do not reach. Returns
/// twice: in the child, the result of `work`; in the parent, 0 after let_go(), or the exit code of a child that ended
/// before. Until then the parent passes SIGINT, SIGTERM and SIGHUP on; it calls `show` with the message of let_go().
/// Call it while the process has one thread. Throws EnvError.
int in_background(const std::function<int(Background&)>& work, const std::function<void(const std::string&)>& show);

}  // namespace trainctl
