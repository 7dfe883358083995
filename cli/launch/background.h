// A command that goes on without its terminal: trainctl run --detach.
#pragma once

#include <functional>
#include <string>

namespace trainctl {

/// The part of a command that runs in a session of its own. Until it lets go, its output is the terminal's
/// and the command waits for it.
class Background {
 public:
  explicit Background(int pipe) : pipe_(pipe) {}
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;
  ~Background();

  bool holds_on() const { return pipe_ >= 0; }
  /// The command prints `message` and ends with 0; our output goes to `log_fd` from now on.
  void let_go(const std::string& message, int log_fd);

 private:
  int pipe_;
};

/// Runs `work` in a new session, out of reach of the terminal's Ctrl-C and hangup. Returns twice: there, what
/// `work` returned; here, 0 once it lets go, or the exit code with which it ended before. Until then SIGINT, SIGTERM
/// and SIGHUP are passed on to it. Call it while the process has one thread. Throws EnvError.
int in_background(const std::function<int(Background&)>& work);

}  // namespace trainctl
