// Runs commands of a cluster manager to their end: sbatch, squeue, scancel.
#include "launcher/clusters/command.h"

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>

#include "engine/base/error.h"
#include "launcher/hosts/transport.h"

namespace trainctl::clusters {
namespace {

/// Exit code of start_piped for a program that cannot be started.
constexpr int kNotStarted = 127;

/// Returns false at the end of the pipe.
bool take(int fd, std::string& text) {
  std::array<char, 4096> buffer{};
  const ssize_t got = read(fd, buffer.data(), buffer.size());
  if (got > 0) text.append(buffer.data(), static_cast<size_t>(got));
  return got > 0;
}

}  // namespace

CommandEnd run_command(const std::vector<std::string>& words, double seconds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  hosts::PipedChild child = hosts::start_piped(words);
  close(child.in);
  CommandEnd result;
  std::array<pollfd, 2> pipes{{{child.out, POLLIN, 0}, {child.err, POLLIN, 0}}};
  bool late = false;
  while (!late && (pipes[0].fd >= 0 || pipes[1].fd >= 0)) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
    late = left.count() <= 0 || poll(pipes.data(), pipes.size(), static_cast<int>(left.count())) == 0;
    if (late) kill(child.pid, SIGKILL);
    if (!late && pipes[0].revents != 0 && !take(child.out, result.out)) pipes[0].fd = -1;
    if (!late && pipes[1].revents != 0 && !take(child.err, result.err)) pipes[1].fd = -1;
  }
  close(child.out);
  close(child.err);
  int status = 0;
  waitpid(child.pid, &status, 0);
  if (late) throw EnvError(words[0] + " has not responded for " + std::to_string(static_cast<int>(seconds)) + " s");
  result.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  if (result.code == kNotStarted && result.out.empty()) throw EnvError("cannot run " + result.err);
  return result;
}

}  // namespace trainctl::clusters
