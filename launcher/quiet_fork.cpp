// Variants of fork for helper processes of the launcher.
#include "launcher/quiet_fork.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>

namespace trainctl {
namespace {

using Clock = std::chrono::steady_clock;

void write_all(int fd, const std::string& text) {
  for (size_t done = 0; done < text.size();) {
    const ssize_t put = write(fd, text.data() + done, text.size() - done);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return;
    done += static_cast<size_t>(put);
  }
}

/// Reads to the end of file; false if it does not come before `deadline`.
bool read_all(int fd, Clock::time_point deadline, std::string& text) {
  char buffer[4096];
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd ready{fd, POLLIN, 0};
    const int found = poll(&ready, 1, static_cast<int>(std::max<int64_t>(0, left)));
    if (found < 0 && errno == EINTR) continue;
    if (found <= 0) return false;
    const ssize_t got = read(fd, buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return got == 0;
    text.append(buffer, static_cast<size_t>(got));
  }
}

}  // namespace

pid_t quiet_fork() {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const pid_t pid = fork();
  const int error = errno;
  if (pid == 0) {
    setpgid(0, 0);
  } else {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }
  errno = error;
  return pid;
}

void close_all_but(int fd) {
  if (fd > 0) close_range(0, static_cast<unsigned>(fd) - 1, 0);
  close_range(static_cast<unsigned>(fd) + 1, ~0U, 0);
}

void close_all_but(std::vector<int> fds) {
  std::sort(fds.begin(), fds.end());
  unsigned next = 0;
  for (const int fd : fds) {
    const auto kept = static_cast<unsigned>(fd);
    if (kept > next) close_range(next, kept - 1, 0);
    next = kept + 1;
  }
  close_range(next, ~0U, 0);
}

std::optional<std::string> in_child(double seconds, const std::function<std::string()>& work) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return work();
  const pid_t pid = quiet_fork();
  if (pid < 0) {  // the limit of processes: without a child the disk's answer has no time limit
    close(ends[0]);
    close(ends[1]);
    return work();
  }
  if (pid == 0) {
    close_all_but(ends[1]);
    write_all(ends[1], work() + ".");  // so that an empty result differs from a child that died
    _exit(0);
  }
  close(ends[1]);
  std::string text;
  const auto patience = std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  const bool read = read_all(ends[0], Clock::now() + patience, text);
  close(ends[0]);
  kill(pid, SIGKILL);
  waitpid(pid, nullptr, read ? 0 : WNOHANG);  // one that a disk holds ends when the disk answers
  if (!read || text.empty()) return std::nullopt;
  text.pop_back();
  return text;
}

}  // namespace trainctl
