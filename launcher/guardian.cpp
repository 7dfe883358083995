// The guardian's few lines run in a fork without exec: only async-signal-safe calls, no allocation.
#include "launcher/guardian.h"

#include <fcntl.h>
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
#include "engine/base/machine_limits.h"
#include "launcher/quiet_fork.h"
#include "launcher/stragglers.h"

namespace trainctl {
namespace {

[[noreturn]] void guard(int pipe, int32_t* groups, size_t count, size_t capacity, const char* mark) {
  prctl(PR_SET_NAME, "trainctl-guard");
  close_all_but(pipe);
  for (;;) {
    int32_t message = 0;
    const ssize_t got = read(pipe, &message, sizeof message);
    if (got < 0 && errno == EINTR) continue;
    if (got != static_cast<ssize_t>(sizeof message)) break;
    if (message > 0 && count < capacity) groups[count++] = message;
    if (message < 0) count = static_cast<size_t>(std::remove(groups, groups + count, -message) - groups);
  }
  for (size_t i = 0; i < count; ++i) kill(-groups[i], SIGKILL);
  kill_leftovers(mark);
  _exit(0);
}

}  // namespace

Guardian::Guardian(int max_groups, const std::string& mark)
    : max_groups_(static_cast<size_t>(max_groups)), mark_(mark) {
  for (Process& process : processes_) {
    if (!start(process)) throw EnvError(std::string("cannot start a guardian process: ") + describe_errno(errno));
  }
}

Guardian::~Guardian() {
  for (const Process& process : processes_) {
    if (process.pipe >= 0) close(process.pipe);
  }
  for (const Process& process : processes_) {
    if (process.pid > 0) waitpid(process.pid, nullptr, 0);
  }
}

/// On failure (errno) there is no process.
bool Guardian::start(Process& process) const {
  std::vector<int32_t> groups(groups_.begin(), groups_.end());  // copied into the child by fork
  groups.resize(std::max(max_groups_, groups_.size()));
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return false;
  const pid_t pid = quiet_fork();
  if (pid == 0) guard(ends[0], groups.data(), groups_.size(), groups.size(), mark_.c_str());
  const int error = errno;
  close(ends[0]);
  if (pid < 0) {
    close(ends[1]);
    errno = error;
    return false;
  }
  process = {pid, ends[1]};
  return true;
}

bool Guardian::replace_dead() {
  bool complete = true;
  for (Process& process : processes_) {
    if (process.pid > 0 && waitpid(process.pid, nullptr, WNOHANG) != process.pid) continue;
    if (process.pipe >= 0) close(process.pipe);
    process = {};
    complete = start(process) && complete;
  }
  return complete;
}

/// Ignores errors: a guardian that was killed is replaced by one that knows all groups.
void Guardian::send(int message) const {
  const auto word = static_cast<int32_t>(message);
  for (const Process& process : processes_) {
    while (process.pipe >= 0 && write(process.pipe, &word, sizeof word) < 0 && errno == EINTR) {
    }
  }
}

void Guardian::watch(int pid) {
  groups_.push_back(pid);
  send(pid);
}

void Guardian::forget(int pid) {
  std::erase(groups_, pid);
  send(-pid);
}

}  // namespace trainctl
