// Writes launcher.log: the launcher's output goes into a socket, from which a process copies it to the file. The
// process removes bytes from the socket only after they are in the file, so that the socket's queue shows the bytes
// that are not yet written.
#include "cli/run/launch/launcher_log.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "engine/base/error.h"
#include "engine/base/machine_limits.h"
#include "launcher/quiet_fork.h"
#include "launcher/rank_error.h"

namespace trainctl {
namespace {

constexpr timeval kLogPatience{.tv_sec = 3, .tv_usec = 0};

void write_all(int file, const char* text, size_t size) {
  for (size_t done = 0; done < size;) {
    const ssize_t put = write(file, text + done, size - done);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return;  // a full disk loses lines
    done += static_cast<size_t>(put);
  }
}

[[noreturn]] void copy(int socket, int file) {
  prctl(PR_SET_NAME, "trainctl-log");
  if (dup2(file, STDOUT_FILENO) < 0 || dup2(socket, STDIN_FILENO) < 0) _exit(1);
  close_range(STDERR_FILENO, ~0U, 0);
  char buffer[16384];
  for (;;) {
    const ssize_t got = recv(STDIN_FILENO, buffer, sizeof buffer, MSG_PEEK);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) _exit(0);
    write_all(STDOUT_FILENO, buffer, static_cast<size_t>(got));
    if (recv(STDIN_FILENO, buffer, static_cast<size_t>(got), 0) < 0) _exit(1);
  }
}

}  // namespace

LauncherLog::LauncherLog(const std::string& path) {
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (file < 0) throw EnvError("cannot write " + path + ": " + describe_errno(errno));
  int ends[2] = {-1, -1};
  const bool connected = socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0;
  const pid_t pid = connected ? quiet_fork() : -1;
  const int error = errno;
  if (pid == 0) copy(ends[1], file);
  close(file);
  if (connected) close(ends[1]);
  if (pid < 0) {
    if (connected) close(ends[0]);
    throw EnvError("cannot write " + path + ": " + describe_errno(error));
  }
  setsockopt(ends[0], SOL_SOCKET, SO_SNDTIMEO, &kLogPatience, sizeof kLogPatience);
  fd_ = ends[0];
}

LauncherLog::~LauncherLog() { close(fd_); }

void LauncherLog::flush(double seconds) const {
  const double end = steady_seconds() + seconds;
  int pending = 0;
  while (ioctl(fd_, SIOCOUTQ, &pending) == 0 && pending > 0 && steady_seconds() < end) usleep(1000);
}

}  // namespace trainctl
