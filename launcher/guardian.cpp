// The guardian's few lines run in a fork without exec: only async-signal-safe calls, no allocation.
#include "launcher/guardian.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "launcher/stragglers.h"

namespace trainctl {
namespace {

void close_all_but(int fd) {
  if (fd > 0) close_range(0, static_cast<unsigned>(fd) - 1, 0);
  close_range(static_cast<unsigned>(fd) + 1, ~0U, 0);
}

[[noreturn]] void guard(int pipe, int32_t* groups, size_t capacity, const char* mark) {
  setpgid(0, 0);  // out of reach of the terminal's Ctrl-C
  prctl(PR_SET_NAME, "trainctl-guard");
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1}) std::signal(number, SIG_IGN);
  close_all_but(pipe);
  size_t count = 0;
  for (;;) {
    int32_t message = 0;
    const ssize_t got = read(pipe, &message, sizeof message);
    if (got < 0 && errno == EINTR) continue;
    if (got != static_cast<ssize_t>(sizeof message)) break;
    if (message > 0 && count < capacity) groups[count++] = message;
    if (message < 0) count = static_cast<size_t>(std::remove(groups, groups + count, -message) - groups);
  }
  for (size_t i = 0; i < count; ++i) kill(-groups[i], SIGKILL);
  kill_stragglers(mark);
  _exit(0);
}

}  // namespace

Guardian::Guardian(int max_groups, const std::string& mark) {
  std::vector<int32_t> groups(static_cast<size_t>(max_groups));  // copied into the child by fork
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw EnvError(std::string("cannot make a pipe: ") + std::strerror(errno));
  pid_ = fork();
  if (pid_ == 0) guard(ends[0], groups.data(), groups.size(), mark.c_str());
  const int error = errno;
  close(ends[0]);
  pipe_ = ends[1];
  if (pid_ < 0) {
    close(pipe_);
    throw EnvError(std::string("cannot fork: ") + std::strerror(error));
  }
}

Guardian::~Guardian() {
  close(pipe_);
  waitpid(pid_, nullptr, 0);
}

namespace {

/// Ignores errors: if the guardian was killed, the ranks still die with the launcher.
void tell(int pipe, int32_t message) {
  while (write(pipe, &message, sizeof message) < 0 && errno == EINTR) {
  }
}

}  // namespace

void Guardian::watch(int pid) { tell(pipe_, pid); }
void Guardian::forget(int pid) { tell(pipe_, -pid); }

}  // namespace trainctl
