// Forks launchers and observes them.
#include "tests/launcher/launcher_process.h"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "launcher/failure_report.h"
#include "launcher/supervisor.h"

using namespace trainctl;

namespace {

/// A RankProgram of shell scripts, one per rank.
class Scripts : public RankProgram {
 public:
  Scripts(const std::string& log_dir, const std::vector<std::string>& scripts, bool reports_progress)
      : log_dir_(log_dir), scripts_(scripts), reports_progress_(reports_progress) {}

  ProcessCommand command(const RankPlace& place, int attempt) override {
    ProcessCommand command;
    command.argv = {"/bin/sh", "-c", scripts_[static_cast<size_t>(place.rank)]};
    command.environment = {
        {"RANK", std::to_string(place.rank)}, {"DIR", log_dir_}, {"ATTEMPT", std::to_string(attempt)}};
    return command;
  }
  std::optional<RankProgress> progress(int rank) override {
    if (!reports_progress_) return std::nullopt;
    const bool still = std::filesystem::exists(log_dir_ + "/still." + std::to_string(rank));
    return RankProgress{.position = still ? 0 : ++looks_};
  }
  void stop_after_step() override { std::ofstream(log_dir_ + "/stop") << "\n"; }
  std::optional<int64_t> stopped_at() override {
    const std::string step = slurp(log_dir_ + "/stopped");
    return step.empty() ? std::nullopt : std::optional<int64_t>(std::stoll(step));
  }

 private:
  const std::string log_dir_;
  const std::vector<std::string> scripts_;
  const bool reports_progress_;
  uint64_t looks_ = 0;
};

class NoticesFile : public LaunchObserver {
 public:
  explicit NoticesFile(const std::string& path) : file_(path) {}
  void on_notice(std::string_view message) override { file_ << message << std::endl; }

 private:
  std::ofstream file_;
};

int launch_and_wait(const std::string& log_dir, const std::vector<std::string>& scripts,
                    const LauncherOptions& options) {
  const int ranks = static_cast<int>(scripts.size());
  Scripts program(log_dir, scripts, options.progress);
  RunDirectory directory = RunDirectory::create(log_dir, ranks);
  NoticesFile notices(log_dir + "/notices");
  Launch launch{.cluster = one_host(ranks), .directory = directory, .program = program, .observer = notices};
  launch.limits.grace_seconds = options.grace_seconds;
  launch.limits.timeout_seconds = options.timeout_seconds;
  launch.limits.ranks_explain = options.explain;
  launch.limits.max_restarts = options.max_restarts;
  launch.bindings = options.bindings;
  launch.stops_after_step = options.gate;
  PosixProcessRunner runner;
  boost::asio::io_context loop;
  const Outcome outcome = supervise(launch, runner, loop);
  std::ofstream(log_dir + "/report") << failure_report(outcome, launch.cluster, launch.directory);
  std::ofstream(log_dir + "/outcome") << outcome_json(outcome);
  return outcome.exit_code;
}

/// The state letter in /proc/<pid>/stat, which reads "17 (name) S 1 …"; \0 if there is no such process.
char state_of_process(int pid) {
  const std::string stat = slurp("/proc/" + std::to_string(pid) + "/stat");
  const size_t name_end = stat.rfind(')');
  return name_end != std::string::npos && name_end + 2 < stat.size() ? stat[name_end + 2] : '\0';
}

}  // namespace

int start_launcher(const std::string& log_dir, const std::vector<std::string>& scripts,
                   const LauncherOptions& options) {
  const pid_t tests = getpid(), pid = fork();
  if (pid != 0) return pid;
  die_with(tests);
  _exit(launch_and_wait(log_dir, scripts, options));
}

int wait_for(int pid) {
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

void die_with(int parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127);  // it ended before prctl
}

bool alive(int pid) {
  const char state = state_of_process(pid);
  return state != '\0' && state != 'Z';
}

std::vector<int> children_named(int pid, const std::string& name) {
  std::istringstream children(slurp("/proc/" + std::to_string(pid) + "/task/" + std::to_string(pid) + "/children"));
  std::vector<int> found;
  for (int child = 0; children >> child;) {
    if (alive(child) && slurp("/proc/" + std::to_string(child) + "/comm") == name + "\n") found.push_back(child);
  }
  std::sort(found.begin(), found.end());
  return found;
}

int child_named(int pid, const std::string& name) {
  std::vector<int> found;
  if (!eventually([&] { return (found = children_named(pid, name)).size() == 1; }))
    throw std::runtime_error(std::to_string(found.size()) + " processes are named " + name);
  return found[0];
}

bool stopped(int pid) { return state_of_process(pid) == 'T'; }

bool eventually(const std::function<bool()>& holds) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(100);
  while (!holds()) {
    if (std::chrono::steady_clock::now() > deadline) return holds();
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

std::string slurp(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();  // stops where the file can no longer be read; istreambuf_iterator would throw
  return text.str();
}

int pid_in(const std::string& path) {
  if (!eventually([&] { return slurp(path).ends_with("\n"); })) throw std::runtime_error("no process wrote " + path);
  return std::stoi(slurp(path));
}
