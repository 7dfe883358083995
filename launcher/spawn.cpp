// fork and exec with what posix_spawn lacks: death with the parent, and no stray descriptors.
#include "launcher/spawn.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fstream>
#include <map>

#include "engine/base/error.h"
#include "launcher/clusters/pods.h"

extern char** environ;

namespace trainctl {
namespace {

/// How long the destructor waits for killed processes.
constexpr int kMostEndLooks = 2000;  // a millisecond apart

std::vector<char*> pointers(const std::vector<std::string>& words) {
  std::vector<char*> list;
  for (const std::string& word : words) list.push_back(const_cast<char*>(word.c_str()));
  list.push_back(nullptr);
  return list;
}

std::vector<std::string> merged_environment(const ProcessCommand& command) {
  std::map<std::string, std::string> merged;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text(*entry);
    const size_t equals = text.find('=');
    if (equals != std::string::npos) merged[text.substr(0, equals)] = text.substr(equals + 1);
  }
  merged.erase(clusters::kTokenVariable);  // it is for agents alone
  for (const auto& [name, value] : command.environment) merged[name] = value;
  std::vector<std::string> words;
  for (const auto& [name, value] : merged) words.push_back(name + "=" + value);
  return words;
}

/// Marks every descriptor from 3 on to be closed by exec. Only async-signal-safe calls.
void close_on_exec_from_3() {
  if (close_range(3, ~0U, CLOSE_RANGE_CLOEXEC) == 0) return;
  const long limit = std::min(sysconf(_SC_OPEN_MAX), 65536L);  // kernels before 5.11
  for (int fd = 3; fd < limit; ++fd) fcntl(fd, F_SETFD, FD_CLOEXEC);
}

/// The kernel's bit mask, as long as the highest CPU number requires: a cpu_set_t ends at 1,024.
std::vector<unsigned long> cpu_mask(const std::vector<int>& cpus) {
  if (cpus.empty()) return {};
  const int count = *std::max_element(cpus.begin(), cpus.end()) + 1;
  std::vector<unsigned long> words(CPU_ALLOC_SIZE(count) / sizeof(unsigned long));
  for (const int cpu : cpus) {
    CPU_SET_S(cpu, words.size() * sizeof(unsigned long), reinterpret_cast<cpu_set_t*>(words.data()));
  }
  return words;
}

/// All data that the child needs, prepared before fork: after fork only async-signal-safe calls are allowed.
struct ChildSetup {
  std::vector<char*> argv, envp;
  const char* working_dir;
  int stdin_fd, stdout_fd, stderr_fd;
  const std::vector<int>& inherited_fds;
  const std::vector<unsigned long>& cpu_mask;  ///< empty: the launcher's
  int error_fd;
  pid_t parent;
};

[[noreturn]] void run_child(const ChildSetup& setup) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != setup.parent) _exit(127);  // the parent died before prctl
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  for (const int number : {SIGPIPE, SIGXFSZ, SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGCHLD}) std::signal(number, SIG_DFL);

  const bool ready =
      dup2(setup.stdin_fd, 0) >= 0 && dup2(setup.stdout_fd, 1) >= 0 && dup2(setup.stderr_fd, 2) >= 0 &&
      (setup.working_dir == nullptr || chdir(setup.working_dir) == 0) &&
      (setup.cpu_mask.empty() || sched_setaffinity(0, setup.cpu_mask.size() * sizeof(unsigned long),
                                                   reinterpret_cast<const cpu_set_t*>(setup.cpu_mask.data())) == 0);
  if (ready) {
    close_on_exec_from_3();
    for (const int fd : setup.inherited_fds) fcntl(fd, F_SETFD, 0);
    execvpe(setup.argv[0], setup.argv.data(), setup.envp.data());
  }
  const int error = errno;
  if (write(setup.error_fd, &error, sizeof error) < 0) _exit(126);
  _exit(127);
}

class OwnedFd {
 public:
  explicit OwnedFd(int fd) : fd_(fd) {}
  OwnedFd(const OwnedFd&) = delete;
  OwnedFd& operator=(const OwnedFd&) = delete;
  ~OwnedFd() { reset(); }
  int get() const { return fd_; }
  void reset() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }

 private:
  int fd_;
};

}  // namespace

int PosixProcessRunner::start(const ProcessCommand& command) {
  check(!command.argv.empty(), "a command has at least its program");
  const std::vector<std::string> environment = merged_environment(command);
  const OwnedFd null(open("/dev/null", O_RDWR | O_CLOEXEC));
  int ends[2];
  if (null.get() < 0 || pipe2(ends, O_CLOEXEC) != 0) {
    throw EnvError("cannot start " + command.argv[0] + ": " + std::strerror(errno));
  }
  const OwnedFd read_end(ends[0]);
  OwnedFd write_end(ends[1]);
  const std::vector<unsigned long> cpus = cpu_mask(command.cpus);
  const ChildSetup setup{pointers(command.argv),
                         pointers(environment),
                         command.working_dir.empty() ? nullptr : command.working_dir.c_str(),
                         null.get(),
                         command.stdout_fd >= 0 ? command.stdout_fd : null.get(),
                         command.stderr_fd >= 0 ? command.stderr_fd : null.get(),
                         command.inherited_fds,
                         cpus,
                         write_end.get(),
                         getpid()};
  const pid_t pid = fork();
  if (pid < 0) throw EnvError("cannot start " + command.argv[0] + ": " + std::strerror(errno));
  if (pid == 0) run_child(setup);

  setpgid(pid, pid);  // in both processes, so that the group exists whichever runs first
  write_end.reset();
  int error = 0;
  ssize_t got = 0;
  do {
    got = read(read_end.get(), &error, sizeof error);  // ends at exec, which closes the other end
  } while (got < 0 && errno == EINTR);
  if (got == static_cast<ssize_t>(sizeof error)) {
    waitpid(pid, nullptr, 0);
    throw EnvError("cannot start " + command.argv[0] + ": " + std::strerror(error));
  }
  running_.push_back(pid);
  return pid;
}

void PosixProcessRunner::signal_group(int pid, int signal) {
  if (std::find(running_.begin(), running_.end(), pid) == running_.end()) return;
  kill(-pid, signal);
}

bool PosixProcessRunner::is_frozen(int pid) { return process_is_frozen(pid); }

bool process_is_frozen(int pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(file, text);
  const size_t name_end = text.rfind(')');  // "17 (name) T 1 …"
  if (name_end == std::string::npos || name_end + 2 >= text.size()) return false;
  return text[name_end + 2] == 'T' || text[name_end + 2] == 't';
}

std::vector<ProcessEnd> PosixProcessRunner::reap() {
  std::vector<ProcessEnd> ends;
  std::erase_if(running_, [&](int pid) {
    siginfo_t info{};
    if (waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid != pid) {
      return false;
    }
    kill(-pid, SIGKILL);  // while the zombie still occupies the pid, so that it cannot have been reused
    waitpid(pid, nullptr, 0);
    ends.push_back({pid, info.si_code != CLD_EXITED, info.si_status});
    return true;
  });
  return ends;
}

PosixProcessRunner::~PosixProcessRunner() {
  for (const int pid : running_) kill(-pid, SIGKILL);
  // A process that waits for a disk or a device that does not answer does not end.
  for (int look = 0; look < kMostEndLooks && !running_.empty(); ++look) {
    reap();
    if (!running_.empty()) usleep(1000);
  }
}

std::string signal_name(int signal) {
  const char* name = sigabbrev_np(signal);
  return name != nullptr ? std::string("SIG") + name : "signal " + std::to_string(signal);
}

std::string describe(const ProcessEnd& end) {
  if (end.signaled) return "was killed by " + signal_name(end.code);
  return "exited with code " + std::to_string(end.code);
}

}  // namespace trainctl
