// fork and exec with features that posix_spawn lacks: death with the parent, and no stray descriptors.
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
#include <filesystem>
#include <fstream>
#include <map>

#include "engine/base/error.h"
#include "engine/base/machine_limits.h"
#include "engine/base/printable.h"
#include "engine/base/text.h"
#include "launcher/clusters/pods.h"
#include "launcher/own_program.h"
#include "launcher/quiet_fork.h"
#include "launcher/rank_error.h"
#include "launcher/signals.h"
#include "launcher/stragglers.h"

extern char** environ;

namespace trainctl {
namespace {

/// The time that the destructor waits for killed processes.
constexpr int kMostEndLooks = 2000;  // a millisecond apart
/// A process that ends within this time after its parent is a helper, and is not reported.
constexpr double kHelperSeconds = 0.5;
/// Interval between searches for ended orphans.
constexpr double kOrphanSeconds = 1;
/// Minimum interval between scans of /proc.
constexpr double kLookSeconds = 0.02;

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
  merged.erase(clusters::kTokenVariable);  // it is only for agents
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

/// Returns the kernel's bit mask of the CPUs. It is as long as the highest CPU number requires, because a cpu_set_t
/// ends at CPU 1,023.
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
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != setup.parent) _exit(127);  // the parent died before prctl
  restore_signals();
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

/// The interpreter on the "#!" line of a command's script, in quotes; "" if the command is not an existing script.
std::string interpreter_of(const ProcessCommand& command) {
  if (command.argv[0].find('/') == std::string::npos) return "";
  std::ifstream file(std::filesystem::path(command.working_dir) / command.argv[0], std::ios::binary);
  std::string line;
  if (!std::getline(file, line) || !line.starts_with("#!")) return "";
  const std::string dos = line.ends_with('\r') ? " (the file has Windows line endings; convert it with dos2unix)" : "";
  return "'" + printable(line.substr(2, line.find_last_not_of("\r ") - 1)) + "'" + dos;
}

/// Returns the text about a file or folder that this host lacks.
std::string missing_here(const std::string& what, const std::string& path, const std::string& folder) {
  return "the " + what + " " + printable(path) + " does not exist on this host; launch.copy: [" + printable(folder) +
         "] copies it to each of launch.hosts";
}

/// A file of a command that does not exist, as text for an error; "" if there is none.
std::string missing_file(const ProcessCommand& command) {
  std::error_code ignored;
  const std::filesystem::path folder = command.working_dir;
  const auto is_missing = [&](const std::string& file) { return !std::filesystem::exists(folder / file, ignored); };
  if (!command.working_dir.empty() && !std::filesystem::is_directory(folder, ignored))
    return missing_here("folder", command.working_dir, command.working_dir);
  const std::string& program = command.argv[0];
  if (command.working_dir.empty()) return "";
  if (program.find('/') != std::string::npos && program[0] != '/' && is_missing(program))
    return missing_here("program", (folder / program).lexically_normal().string(), command.working_dir);
  if (!command.script.empty() && is_missing(command.script))
    return missing_here("script", (folder / command.script).lexically_normal().string(), command.working_dir);
  return "";
}

/// Tells why a program could not be started: a missing file, its interpreter, or what the system says.
std::string reason_of(const ProcessCommand& command, int error) {
  if (error == ENOENT)
    if (std::string missing = missing_file(command); !missing.empty()) return missing;
  const std::string interpreter = error == ENOENT ? interpreter_of(command) : "";
  return interpreter.empty() ? describe_errno(error)
                             : "the interpreter in its first line does not exist: " + interpreter;
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
  if (!command.script.empty())
    if (const std::string missing = missing_file(command); !missing.empty())
      throw EnvError("cannot start " + command.argv[0] + ": " + missing);
  const std::vector<std::string> environment = merged_environment(command);
  const OwnedFd null(open("/dev/null", O_RDWR | O_CLOEXEC));
  int ends[2];
  if (null.get() < 0 || pipe2(ends, O_CLOEXEC) != 0) {
    throw EnvError("cannot start " + command.argv[0] + ": " + describe_errno(errno));
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
  const pid_t pid = quiet_fork();
  if (pid < 0) throw EnvError("cannot start " + command.argv[0] + ": " + describe_errno(errno));
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
    throw EnvError("cannot start " + command.argv[0] + ": " + reason_of(command, error));
  }
  running_.push_back({pid, command.mark, command.leftover_seconds});
  return pid;
}

void PosixProcessRunner::signal_group(int pid, int signal) {
  const auto found =
      std::find_if(running_.begin(), running_.end(), [pid](const Running& running) { return running.pid == pid; });
  if (found == running_.end()) return;
  if (signal != SIGUSR1 && signal != SIGCONT) found->is_asked = true;
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
  std::map<int, ProcessEnd> exited;
  for (Running& running : running_) {
    siginfo_t info{};
    const auto id = static_cast<id_t>(running.pid);
    if (waitid(P_PID, id, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid != running.pid) continue;
    exited[running.pid] = {running.pid, info.si_code != CLD_EXITED, info.si_status};
    const bool is_done = info.si_code == CLD_EXITED && info.si_status == 0 && !running.is_asked;
    if (is_done && running.exited == 0) running.exited = steady_seconds();
    if (!is_done) running.exited = 0;
  }
  look_for_leftovers();
  reap_orphans();
  std::vector<ProcessEnd> ends;
  std::erase_if(running_, [&](const Running& running) {
    const auto end = exited.find(running.pid);
    if (end == exited.end()) return false;
    const bool is_done = running.exited > 0;
    if (is_done && !running.leftovers) return false;
    const bool is_left = is_done && !running.leftovers->empty();
    if (is_left && steady_seconds() - running.exited < running.leftover_seconds) return false;
    kill(-running.pid, SIGKILL);  // while the zombie still occupies the pid, so that it cannot have been reused
    if (is_done && !running.failures.empty())
      end->second.left = ", and processes that it had left running failed: " + join(running.failures, ", ");
    if (is_left) end->second.left = " and left processes running, which were killed: " + describe(*running.leftovers);
    if (is_left && !running.mark.empty()) kill_leftovers(running.mark.c_str());
    waitpid(running.pid, nullptr, 0);
    killed_groups_.push_back(running.pid);
    ends.push_back(end->second);
    return true;
  });
  return ends;
}

/// Removes leftovers that have ended. The end of one whose parent still runs cannot be observed.
void PosixProcessRunner::note_ended_leftovers(Running& running) {
  std::erase_if(*running.leftovers, [&](const Leftover& one) {
    int status = 0;
    if (waitpid(one.pid, &status, WNOHANG) != one.pid) return !is_running(one.pid);
    if (status == 0) return true;
    const bool is_killed = WIFSIGNALED(status);
    running.failures.push_back(
        describe({one}) + " " +
        describe(ProcessEnd{one.pid, is_killed, is_killed ? WTERMSIG(status) : WEXITSTATUS(status)}));
    return true;
  });
}

/// Reaps processes that have outlived their parents, since no other process waits for them.
void PosixProcessRunner::reap_orphans() {
  std::erase_if(killed_groups_, [](int group) {
    pid_t ended = 0;
    while ((ended = waitpid(-group, nullptr, WNOHANG)) > 0) {
    }
    return ended < 0;  // the group has no other children
  });
  if (steady_seconds() - orphans_ < kOrphanSeconds) return;
  orphans_ = steady_seconds();
  for (const int child : ended_children()) {
    const bool is_of_rank = std::any_of(running_.begin(), running_.end(), [&](const Running& running) {
      const auto& left = running.leftovers;
      return running.pid == child ||
             (left && std::any_of(left->begin(), left->end(), [&](const Leftover& one) { return one.pid == child; }));
    });
    if (!is_of_rank && getsid(child) != getsid(0)) waitpid(child, nullptr, WNOHANG);
  }
}

/// Looks for leftovers of all processes that have exited with 0 in one scan of /proc: after they have exited,
/// and again when the leftovers that were found have ended.
void PosixProcessRunner::look_for_leftovers() {
  std::vector<Running*> asked;
  std::vector<Family> families;
  for (Running& running : running_) {
    if (running.exited == 0) continue;
    if (running.leftovers) note_ended_leftovers(running);
    if (running.leftovers && !running.leftovers->empty()) continue;
    running.leftovers.reset();
    asked.push_back(&running);
    families.push_back({running.pid, running.mark});
  }
  if (asked.empty() || steady_seconds() - looked_ < kLookSeconds) return;
  looked_ = steady_seconds();
  const auto found = find_leftovers(families);
  for (size_t i = 0; i < asked.size(); ++i) asked[i]->leftovers = found[i];
}

std::vector<LeftProcesses> PosixProcessRunner::new_leftovers() {
  std::vector<LeftProcesses> found;
  for (Running& running : running_) {
    if (running.is_reported || running.exited == 0 || !running.leftovers || running.leftovers->empty()) continue;
    if (steady_seconds() - running.exited < kHelperSeconds) continue;
    running.is_reported = true;
    found.push_back({running.pid, describe(*running.leftovers)});
  }
  return found;
}

PosixProcessRunner::PosixProcessRunner() {
  own_program();
  prctl(PR_SET_CHILD_SUBREAPER, 1);
}

PosixProcessRunner::~PosixProcessRunner() {
  for (Running& running : running_) {
    running.is_asked = true;
    kill(-running.pid, SIGKILL);
  }
  // A process that waits for an unresponsive disk or device does not end.
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
  return "exited with code " + std::to_string(end.code) + end.left;
}

}  // namespace trainctl
