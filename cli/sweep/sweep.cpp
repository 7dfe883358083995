// Runs the trials of a sweep, several at a time, and reports their results.
#include "cli/sweep/sweep.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <thread>

#include "cli/run/launch/run_end.h"
#include "cli/sweep/halving.h"
#include "engine/base/error.h"
#include "engine/base/machine_limits.h"
#include "engine/base/measures.h"
#include "engine/base/text.h"
#include "launcher/own_program.h"
#include "launcher/signals.h"
#include "launcher/topology.h"

namespace trainctl {
namespace {

namespace fs = std::filesystem;

constexpr auto kPause = std::chrono::milliseconds(50);
constexpr int kPausesPerLook = 10;  // between two looks at the metrics of the trials, for halving
volatile sig_atomic_t interrupts = 0, first_interrupt = 0;

void watch_interrupts() {
  handle_signals({SIGINT, SIGTERM, SIGHUP}, [](int signal) {
    if (interrupts == 0) first_interrupt = signal;
    interrupts = interrupts + 1;
  });
}

/// The GPUs that belong to a slot: "0,1".
std::string gpus_of_slot(const Sweep& sweep, int slot) {
  std::vector<std::string> numbers;
  for (int i = 0; i < sweep.ranks; ++i)
    numbers.push_back(std::to_string(sweep.gpus[static_cast<size_t>(slot * sweep.ranks + i)]));
  return join(numbers, ",");
}

class Trials {
 public:
  Trials(const Sweep& sweep, const TrainSpec& train, ProcessRunner& runner,
         const std::function<void(const std::string&)>& report)
      : sweep_(sweep),
        saves_state_(train.saves_state()),
        save_dir_(train.saving().dir),
        runner_(runner),
        report_(report),
        cores_(read_topology().cpus.size()) {
    for (int slot = sweep.at_once - 1; slot >= 0; --slot) free_.push_back(slot);
    for (size_t trial = 0; trial < sweep.trials.size(); ++trial)
      if (state_of(sweep, trial) == TrialState::open) open_.push_back(trial);
    std::reverse(open_.begin(), open_.end());
  }

  SweepEnd run() {
    int signals_sent = 0, pauses = 0;
    while (!running_.empty() || (!open_.empty() && interrupts == 0)) {
      while (interrupts == 0 && !free_.empty() && !open_.empty()) start();
      for (const ProcessEnd& end : runner_.reap()) ended(end);
      if (sweep_.halving && interrupts == 0 && pauses++ % kPausesPerLook == 0) end_unpromising();
      for (const int all = interrupts; signals_sent < std::min(all, 2); ++signals_sent)
        for (const auto& [pid, of] : running_) runner_.signal_group(pid, signals_sent == 0 ? first_interrupt : SIGKILL);
      std::this_thread::sleep_for(kPause);
    }
    return {failed_, first_interrupt};
  }

 private:
  struct Running {
    size_t trial;
    int slot;
  };

  std::string name_of(size_t trial) const {
    return fmt::format("trial {}/{}: {}", trial + 1, sweep_.trials.size(), join(sweep_.trials[trial], "  "));
  }

  void start() {
    const size_t trial = open_.back();
    const int slot = free_.back();
    open_.pop_back();
    free_.pop_back();
    fs::create_directories(sweep_.log_dir(trial));
    const std::string path = sweep_.log_dir(trial) + "/output";
    const int output = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (output < 0) throw EnvError("cannot write " + path + ": " + describe_errno(errno));
    ProcessCommand command{.argv = {own_program(), "run", sweep_.job}, .stdout_fd = output, .stderr_fd = output};
    for (const std::string& field : sweep_.trials[trial]) command.argv.push_back(field);
    command.argv.push_back("launch.log_dir=" + sweep_.log_dir(trial));
    if (!save_dir_.empty())  // each trial is a job with its own folder of checkpoints
      command.argv.push_back("train.checkpoint.dir=" + save_dir_ + "/" + fs::path(sweep_.folder).filename().string() +
                             "/trial." + std::to_string(trial + 1));
    if (saves_state_ && has_checkpoint(trial)) command.argv.push_back("--resume");
    command.environment = environment(slot);
    const int pid = runner_.start(command);
    close(output);
    running_[pid] = {trial, slot};
    report_(name_of(trial) + "  started");
  }

  /// Ends the running trials that are not among the best at a rung, as the user's signal would.
  void end_unpromising() {
    values_.resize(sweep_.trials.size());
    for (size_t trial = 0; trial < values_.size(); ++trial) {
      const TrialState state = trainctl::state_of(sweep_, trial);
      if (state == TrialState::open || (state != TrialState::running && !values_[trial].list().empty())) continue;
      values_[trial].read(sweep_, trial, sweep_.halving->by);
    }
    std::vector<std::vector<StepValue>> lists;
    for (const TrialValues& values : values_) lists.push_back(values.list());
    for (const auto& [pid, running] : running_) {
      if (read_decision(sweep_, running.trial)) continue;
      const std::optional<RungDecision> decision = rung_that_ends(lists, running.trial, *sweep_.halving);
      if (!decision) continue;
      write_decision(sweep_, running.trial, *decision);
      runner_.signal_group(pid, SIGINT);
    }
  }

  /// Concurrent trials share the cores, or have separate GPUs.
  std::vector<std::pair<std::string, std::string>> environment(int slot) const {
    std::vector<std::pair<std::string, std::string>> variables;
    if (!sweep_.gpus.empty() && sweep_.at_once > 1)
      variables.emplace_back("CUDA_VISIBLE_DEVICES", gpus_of_slot(sweep_, slot));
    const int64_t threads = static_cast<int64_t>(cores_) / (int64_t{sweep_.at_once} * sweep_.ranks);
    if (sweep_.at_once > 1 && std::getenv("OMP_NUM_THREADS") == nullptr)
      variables.emplace_back("OMP_NUM_THREADS", std::to_string(std::max<int64_t>(1, threads)));
    return variables;
  }

  /// Returns whether a stopped run of the trial has left a checkpoint.
  bool has_checkpoint(size_t trial) const {
    for (const int run : list_runs(sweep_.log_dir(trial))) {
      const auto end = read_run_end({sweep_.log_dir(trial), run});
      if (end && end->result.saved_step.value_or(0) > 0) return true;
    }
    return false;
  }

  void ended(const ProcessEnd& end) {
    const auto found = running_.find(end.pid);
    if (found == running_.end()) return;
    const auto [trial, slot] = found->second;
    running_.erase(found);
    free_.push_back(slot);
    const std::vector<int> runs = list_runs(sweep_.log_dir(trial));
    const auto run_end = runs.empty() ? std::nullopt : read_run_end({sweep_.log_dir(trial), runs.back()});
    const TrialState state = trainctl::state_of(sweep_, trial);
    if (state == TrialState::open && interrupts > 0) return report_(name_of(trial) + "  stopped");
    if (const auto decision = read_decision(sweep_, trial); state == TrialState::ended_early)
      return report_(name_of(trial) + fmt::format("  ended early: {} {} at step {}, {} or better continues",
                                                  sweep_.halving->by, format_loss(decision->value), decision->rung,
                                                  format_loss(decision->cutoff)));
    if (state != TrialState::done) ++failed_;
    std::string text = run_end ? run_end->ending + " after " + format_duration(run_end->seconds)
                               : "failed before it started; see " + sweep_.log_dir(trial) + "/output";
    if (run_end && run_end->result.loss) text += ", loss " + format_loss(static_cast<double>(*run_end->result.loss));
    report_(name_of(trial) + "  " + text);
  }

  const Sweep& sweep_;
  const bool saves_state_;
  const std::string save_dir_;  ///< train.checkpoint.dir of the job
  ProcessRunner& runner_;
  const std::function<void(const std::string&)>& report_;
  const size_t cores_;
  std::vector<size_t> open_;  ///< the next one last
  std::vector<int> free_;     ///< slots, the next one last
  std::map<int, Running> running_;
  int failed_ = 0;
  std::vector<TrialValues> values_;  ///< one per trial, with halving
};

}  // namespace

TrialState state_of(const Sweep& sweep, size_t trial) {
  const std::vector<int> runs = list_runs(sweep.log_dir(trial));
  if (runs.empty()) return TrialState::open;
  switch (state_of(RunDirectory(sweep.log_dir(trial), runs.back()))) {
    case RunState::running:
      return TrialState::running;
    case RunState::done:
      return TrialState::done;
    case RunState::failed:
      return TrialState::failed;
    case RunState::stopped:
    case RunState::lost:
      break;
  }
  return read_decision(sweep, trial) ? TrialState::ended_early : TrialState::open;
}

SweepEnd run_trials(const Sweep& sweep, const JobSpec& spec, ProcessRunner& runner,
                    const std::function<void(const std::string&)>& report) {
  watch_interrupts();
  return Trials(sweep, spec.train, runner, report).run();
}

}  // namespace trainctl
