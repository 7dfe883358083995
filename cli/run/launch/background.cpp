// Continues a command in a child process (fork, setsid). Through a pipe the child reports success (text) or failure
// (end of file).
#include "cli/run/launch/background.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <iostream>

#include "engine/base/error.h"
#include "engine/base/machine_limits.h"
#include "launcher/signals.h"

namespace trainctl {
namespace {

volatile sig_atomic_t background_pid = 0;

void pass_on(int signal) { kill(background_pid, signal); }

/// Reads until the other end closes.
std::string read_all(int fd) {
  std::string text;
  char buffer[512];
  for (;;) {
    const ssize_t got = read(fd, buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return text;
    text.append(buffer, static_cast<size_t>(got));
  }
}

int exit_code_of(int pid) {
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int wait_for_message(int pid, int pipe, const std::function<void(const std::string&)>& show) {
  background_pid = pid;
  handle_signals({SIGINT, SIGTERM, SIGHUP}, pass_on);
  const std::string message = read_all(pipe);
  close(pipe);
  if (message.empty()) return exit_code_of(pid);
  show(message);
  return kExitDone;
}

}  // namespace

Background::~Background() {
  if (pipe_ >= 0) close(pipe_);
}

void Background::let_go(const std::string& message, int log_fd) {
  if (write(pipe_, message.data(), message.size()) < 0) {
    // The command no longer waits for the child; the work continues anyway.
  }
  std::cout.flush();
  std::cerr.flush();
  dup2(log_fd, STDOUT_FILENO);
  dup2(log_fd, STDERR_FILENO);
  close(pipe_);
  pipe_ = -1;
}

int in_background(const std::function<int(Background&)>& work, const std::function<void(const std::string&)>& show) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw EnvError(std::string("cannot create a pipe: ") + describe_errno(errno));
  std::cout.flush();
  const pid_t pid = fork();
  if (pid < 0) {
    const int error = errno;
    close(ends[0]);
    close(ends[1]);
    throw EnvError(std::string("cannot fork: ") + describe_errno(error));
  }
  if (pid != 0) {
    close(ends[1]);
    return wait_for_message(pid, ends[0], show);
  }
  close(ends[0]);
  setsid();
  const int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
  dup2(null, STDIN_FILENO);
  close(null);
  Background background(ends[1]);
  return work(background);
}

}  // namespace trainctl
