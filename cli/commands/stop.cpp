// trainctl stop: asks a run to stop, and waits until it has ended.
#include <fcntl.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <iostream>
#include <memory>

#include "cli/commands/commands.h"
#include "cli/commands/find_run.h"
#include "cli/run/launch/run_end.h"
#include "engine/base/error.h"
#include "launcher/clusters/slurm.h"
#include "launcher/run_directory.h"

namespace trainctl {
namespace {

struct StopArguments {
  RunArguments which;
  bool now = false;
  bool all = false;
  std::string slurm;  ///< ID of a Slurm job
};

/// A launcher, referred to by a pidfd, which never refers to another process.
class Launcher {
 public:
  explicit Launcher(const RegisteredRun& run)
      : run_(run), fd_(static_cast<int>(syscall(SYS_pidfd_open, run.launcher, 0))) {
    if (fd_ < 0 && errno != ESRCH)
      throw EnvError("cannot signal the launcher of " + name_of(run) + ": " + std::strerror(errno));
    if (fd_ >= 0 && !still_runs(run)) drop();  // the pid has been reused by another process
  }
  Launcher(const Launcher&) = delete;
  Launcher& operator=(const Launcher&) = delete;
  ~Launcher() { drop(); }

  const RegisteredRun& run() const { return run_; }
  void send(int signal) const {
    if (fd_ >= 0) syscall(SYS_pidfd_send_signal, fd_, signal, nullptr, 0);
  }
  /// Waits for its end, at most that long; -1: no limit. Returns whether it ended.
  bool wait(int timeout_ms) const {
    if (fd_ < 0) return true;
    pollfd ended{fd_, POLLIN, 0};
    int ready = 0;
    do {
      ready = poll(&ended, 1, timeout_ms);
    } while (ready < 0 && errno == EINTR);
    return ready > 0;
  }

 private:
  void drop() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }

  const RegisteredRun run_;
  int fd_;
};

/// The second SIGTERM makes the launcher kill the ranks. A launcher that does not respond is killed; its guardian and
/// the kernel then kill the ranks.
void kill_run(const Launcher& launcher) {
  constexpr int kPauseMs = 100, kTries = 50;
  for (int i = 0; i < kTries; ++i) {
    launcher.send(SIGTERM);
    launcher.send(SIGCONT);
    if (launcher.wait(kPauseMs)) return;
  }
  launcher.send(SIGKILL);
}

void stop_all(const std::vector<RegisteredRun>& runs, bool now) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  std::vector<std::unique_ptr<Launcher>> launchers;
  for (const RegisteredRun& run : runs) {
    launchers.push_back(std::make_unique<Launcher>(run));
    launchers.back()->send(SIGTERM);
  }
  for (const auto& launcher : launchers) {
    if (now) kill_run(*launcher);
    launcher->wait(-1);
    const RegisteredRun& run = launcher->run();
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    char text[32];
    std::snprintf(text, sizeof text, "%.1f s", seconds);
    const std::optional<RunEnd> end = read_run_end(RunDirectory(run.log_dir, run.run));
    std::cout << name_of(run) << ": " << (end ? end->ending : "killed") << ", " << text
              << " after the request; logs in " << short_path(run.log_dir) << "/" << run.run << std::endl;
  }
}

/// "12" selects all jobs of the array 12, "12_1" one of them.
int stop_slurm(const std::string& id, bool now) {
  std::string notice;
  bool found = false;
  for (const clusters::SubmittedJob& job : clusters::submitted_jobs(notice)) {
    if (job.id != id && !job.id.starts_with(id + "_")) continue;
    found = true;
    clusters::stop_job(job, now);
    std::cout << job.name << ": Slurm job " << job.id
              << (now || job.state != "RUNNING" ? " was cancelled" : " was asked to stop") << "; logs in "
              << short_path(job.log_dir) << "\n";
  }
  if (found) return kExitDone;
  throw EnvError(notice.empty() ? "no active Slurm job " + id + " was submitted from this host" : notice);
}

int stop(const StopArguments& options) {
  if (!options.slurm.empty()) return stop_slurm(options.slurm, options.now);
  if (!options.all) {
    stop_all({options.which.find_running()}, options.now);
    return kExitDone;
  }
  if (options.which.run) throw SpecError({}, "--all", "stops all runs and cannot be combined with a run number");
  const std::vector<RegisteredRun> runs = running_runs();
  if (runs.empty()) std::cout << "no run is active\n";
  stop_all(runs, options.now);
  return kExitDone;
}

}  // namespace

void add_stop_command(CLI::App& app, Action& chosen) {
  auto options = std::make_shared<StopArguments>();
  auto* command = app.add_subcommand("stop", "Stop a run, and wait until it has ended");
  options->which.add_to(*command, "Number of the run");
  command->add_flag("--now", options->now, "Kill the ranks without waiting for the end of a step or launch.grace");
  command->add_flag("--all", options->all, "Stop every run of this user on this host");
  command->add_option("--slurm", options->slurm, "Stop a Slurm job, by the job ID that trainctl run printed");
  command->footer(
      R"(The ranks of a network all stop at the end of the same step. The ranks of a command receive SIGTERM, and SIGKILL after
launch.grace. The run ends with exit code 143, as after SIGTERM.

Examples:
  trainctl stop                 the active run of this folder, or the only one
  trainctl stop 3
  trainctl stop 3 --now
  trainctl stop --all
  trainctl stop --slurm 1234    job ID from trainctl ps; with --now: scancel
  trainctl stop --slurm 1234_1  one job of an array)");
  command->callback([&chosen, options] { chosen = [options] { return stop(*options); }; });
}

}  // namespace trainctl
