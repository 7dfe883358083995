// The launcher's side of a run: connects the run's folder, its registry entry and its view with the supervisor.
#include "cli/run/launch/run.h"

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/run/launch/metrics_file.h"
#include "cli/run/worker/metrics_log.h"
#include "engine/base/error.h"
#include "engine/base/machine_limits.h"
#include "engine/runtime/comm/board_changes.h"
#include "engine/spec/parse.h"
#include "engine/train/files/npy_file.h"
#include "launcher/binding.h"
#include "launcher/failure_report.h"
#include "launcher/host_facts.h"
#include "launcher/hosts/agent_ranks.h"
#include "launcher/quiet_fork.h"
#include "launcher/signals.h"

namespace trainctl {
namespace {

namespace fs = std::filesystem;

void block_interrupts() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGUSR1}) sigaddset(&signals, number);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
}

/// Number of signals since they were blocked, or since the last call. The kernel keeps one of each kind.
int take_interrupts() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&signals, number);
  const timespec none{};
  int taken = 0;
  while (sigtimedwait(&signals, nullptr, &none) > 0) ++taken;
  return taken;
}

constexpr auto kPublish = std::chrono::milliseconds(500);
/// How long the end of a run waits for its disk.
constexpr double kDiskSeconds = 10;
constexpr double kHangingDiskSeconds = 1;

std::unique_ptr<LauncherLog> open_log(const Background* background, const RunDirectory& directory) {
  return background == nullptr ? nullptr : std::make_unique<LauncherLog>(directory.file("launcher.log"));
}

}  // namespace

Run::Run(std::unique_ptr<Workload> workload, std::vector<int> shown, boost::asio::io_context& loop,
         const MakeObserver& make_observer, Background* background, std::shared_ptr<const hosts::Transport> transport,
         Replan replan)
    : workload_(std::move(workload)),
      replan_(std::move(replan)),
      shown_(std::move(shown)),
      loop_(loop),
      background_(background),
      transport_(transport ? std::move(transport) : hosts::transport_of(spec().launch)),
      cluster_(cluster_of(spec())),
      directory_(RunDirectory::create(spec().launch.log_dir, spec().launch.ranks, spec().servers())),
      folder_(directory_),
      lock_(directory_),
      log_(open_log(background, directory_)),
      pids_(static_cast<size_t>(cluster_.num_ranks())),
      view_(make_observer(log_ ? log_->fd() : STDOUT_FILENO)),
      signals_(loop) {
  block_interrupts();  // until the supervisor handles them, so that none is lost
  for (const int number : heeded({SIGINT, SIGTERM, SIGHUP, SIGUSR1})) signals_.add(number);
}

int Run::operator()() {
  try {
    return supervise_ranks();
  } catch (const std::exception& error) {
    const std::optional<std::string> refusal = machine_refusal();
    const bool is_env = refusal || dynamic_cast<const EnvError*>(&error) != nullptr;
    if (folder_.is_kept())
      record_failure(refusal.value_or(error.what()), is_env ? kExitEnv : kExitBug);
    else
      workload_.reset();  // closes its files: at the limit of open files, the folder cannot be deleted otherwise
    throw;
  }
}

/// The launcher itself has failed while its ranks ran.
void Run::record_failure(const std::string& what, int exit_code) const {
  const nlohmann::ordered_json failure = {{"exit_code", exit_code}, {"report", what + "\n"}};
  const std::string outcome = nlohmann::json{{"exit_code", exit_code}, {"seconds", seconds()}}.dump() + "\n";
  try {
    directory_.write("error.json", failure.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
    directory_.write_outcome(outcome, outcome);
  } catch (const EnvError&) {
    // The failure itself is reported on the terminal.
  }
}

int Run::supervise_ranks() {
  write_job();
  workload_->prepare(0, directory_);
  view_->begin(spec().name, processes_text(), directory_, workload_->device());
  register_run();
  watch_signals();
  Outcome outcome;
  if (spec().launch.has_hosts()) {
    outcome = run_on_hosts();
  } else {
    const Launch mine = launch();
    PosixProcessRunner runner;
    outcome = supervise(mine, runner, loop_);
  }
  const int exit_code = finish(std::move(outcome));
  block_interrupts();  // a later signal does not change the result
  return exit_code;
}

/// With launch.elastic each change of hosts ends one supervision and begins another.
Outcome Run::run_on_hosts() {
  if (spec().launch.elastic && replan_.now) elastic_.emplace(spec(), transport_);
  std::vector<FailedAttempt> failed_attempts;
  for (;;) {
    Launch mine = launch();
    const double before = seconds();
    Outcome outcome = supervise_hosts(mine);
    for (FailedAttempt& attempt : outcome.failed_attempts) {
      attempt.seconds += before;
      failed_attempts.push_back(attempt);
    }
    outcome.seconds += before;
    outcome.failed_attempts = failed_attempts;
    const std::string cause = cause_line(outcome.reports, outcome.cause, cluster_);
    if (!elastic_ || !change_hosts(outcome)) return outcome;
    if (!cause.empty()) failed_attempts.push_back({outcome.cause, cause, outcome.seconds});
  }
}

/// Plans the job for the remaining or returned hosts. Returns false if the run is over.
bool Run::change_hosts(const Outcome& outcome) {
  loop_.restart();
  loop_.poll();  // runs the handlers of cancelled operations
  if (outcome.signal != 0 || stop_signals_ > 0) return false;
  const RunResult result = workload_->result();
  std::string why = elastic_->note_lost(cluster_, outcome.reports);
  if (why.empty() && outcome.exit_code == kExitDone && result.step < result.steps) why = elastic_->take_back();
  if (why.empty()) return false;
  note_progress();
  write_rescued();
  const int before = cluster_.num_ranks();
  std::vector<std::string> notices;
  std::string checkpoint;
  try {
    checkpoint = find_resume_point(spec(), {.from = directory_.path()}, notices).path;
  } catch (const EnvError&) {  // no checkpoint is complete: the run starts from the beginning
  }
  std::string fault;
  for (JobSpec& job : elastic_->jobs(fault)) {
    try {
      auto next = replan_.now(std::move(job), checkpoint);
      next->prepare(attempt_ + 1, directory_);
      workload_ = std::move(next);
    } catch (const SpecError& error) {  // the network cannot be sharded over that many ranks
      fault = error.what();
      continue;
    } catch (const EnvError& error) {
      fault = error.what();
      break;
    }
    cluster_ = cluster_of(spec());
    first_attempt_ = ++attempt_;
    started_ = 0;
    planned_ahead_.clear();
    pids_.assign(static_cast<size_t>(cluster_.num_ranks()), 0);
    elastic_->changed({.why = why,
                       .ranks_before = before,
                       .ranks = cluster_.num_ranks(),
                       .last_step = std::max(elastic_->last_step(), workload_->first_step()),
                       .resumed_step = workload_->first_step(),
                       .begin_seconds = elastic_->last_step_seconds()});
    view_->notice(why + "; replanned for " + processes_text() + ", resuming after step " +
                  std::to_string(workload_->first_step()));
    return true;
  }
  view_->notice(why + "; the run ends: no plan for the remaining hosts has at least " +
                std::to_string(spec().launch.elastic->min_ranks) + " ranks" + (fault.empty() ? "" : ":\n" + fault));
  return false;
}

/// Saves the recovered state once the ranks have ended.
void Run::write_rescued() {
  for (const std::string& line : workload_->finish({})) view_->news(line);
  try {
    if (const std::string line = workload_->write_rescued(directory_); !line.empty()) view_->news(line);
  } catch (const EnvError& error) {
    view_->notice(std::string("cannot recover the state from the memory of the hosts: ") + error.what());
  }
}

/// A rank has failed but its host is healthy: restarts on the same hosts, from the state that their agents have.
void Run::restart_on_hosts(hosts::AgentRanks& ranks, const std::function<void()>& prepare) {
  if (!elastic_) return prepare();
  note_progress();
  ranks.rescue();
  write_rescued();
  prepare();
  const int count = cluster_.num_ranks();
  elastic_->changed({.why = "all ranks were restarted",
                     .ranks_before = count,
                     .ranks = count,
                     .last_step = std::max(elastic_->last_step(), workload_->first_step()),
                     .resumed_step = workload_->first_step(),
                     .begin_seconds = elastic_->last_step_seconds()});
}

void Run::note_progress() {
  const std::string line = elastic_->progressed(workload_->result().step, seconds());
  if (!line.empty()) view_->notice(line);
}

/// Whether to readmit hosts: not before the current hosts have finished a step.
bool Run::is_time_to_take_back() const {
  return elastic_ && elastic_->is_any_back() && workload_->is_up() &&
         workload_->result().step > workload_->first_step();
}

/// Plans for the loss of each host, one per tick, once the ranks train; this takes only the launcher's time.
void Run::plan_ahead() {
  if (!elastic_ || !workload_->is_up() || workload_->result().step <= workload_->first_step()) return;
  for (const RankPlace& place : cluster_.places) {
    if (place.local_rank != 0 || !planned_ahead_.insert(place.host).second) continue;
    std::string fault;
    for (JobSpec& job : elastic_->jobs(fault, place.host)) {
      try {
        return replan_.ahead(std::move(job));
      } catch (const SpecError&) {  // the next job has fewer ranks
      } catch (const EnvError&) {   // reported if the plan is needed later
        return;
      }
    }
    return;
  }
}

/// Supervises ranks on several hosts; agents carry out the launcher's decisions.
Outcome Run::supervise_hosts(Launch& launch) {
  hosts::HostsOptions options;
  options.transport = transport_;
  options.reconnect_seconds = spec().launch.reconnect_seconds;
  options.interface = spec().launch.interface;
  options.bind = spec().launch.bind;
  options.hold_port = workload_->needs_port();
  options.first_attempt = first_attempt_;
  if (!copies_) copies_ = hosts::copies_of(spec().launch.copy);
  options.copies = *copies_;
  if (spec().has_command())
    options.program_folder = hosts::copied_folder(spec().launch.copy, spec().working_dir).value_or("");
  else
    options.files = {{"job.yaml", to_yaml(job_on_hosts())}};

  // Each host receives the changes of the other hosts' ranks, on the board of the current attempt.
  std::vector<BoardChanges> changes;
  const auto follow_board = [&] {
    changes.clear();
    if (workload_->board() == nullptr) return;
    for (int host = 0; host < cluster_.num_hosts(); ++host) {
      std::vector<int> others;
      for (const RankPlace& place : cluster_.places)
        if (place.host_number != host) others.push_back(place.rank);
      changes.emplace_back(*workload_->board(), std::move(others));
    }
  };
  follow_board();
  hosts::LauncherBoard board;
  board.workload = [this] { return nlohmann::json::parse(workload_->for_agents()); };
  board.apply = [this](std::string_view bytes, const std::vector<int>& ranks) {
    return workload_->board() == nullptr || apply_changes(bytes, ranks, *workload_->board());
  };
  board.changes_for = [&](int host) { return changes.empty() ? "" : changes[static_cast<size_t>(host)].take(); };
  board.stop_after = [this](uint64_t step) {
    if (workload_->board() != nullptr) workload_->board()->gate().stop_after(step);
  };
  board.take = [this](const hosts::SaveMessage& message, const std::vector<int>& ranks) {
    if (RescuedState* rescued = workload_->rescued(); rescued != nullptr && RescuedState::knows(message))
      return rescued->take(message, ranks);
    return workload_->saves() != nullptr && workload_->saves()->take(message, ranks);
  };
  board.messages = [this] {
    auto messages = workload_->saves() ? workload_->saves()->messages() : std::vector<hosts::SaveMessage>();
    if (workload_->rescued() == nullptr) return messages;
    for (hosts::SaveMessage& message : workload_->rescued()->messages()) messages.push_back(std::move(message));
    return messages;
  };
  board.rescue = [this](const std::vector<std::vector<int>>& hosts) -> std::optional<int64_t> {
    RescuedState* rescued = workload_->rescued();
    if (!elastic_ || rescued == nullptr || stop_signals_ > 0) return std::nullopt;
    if (!rescued->has_begun()) rescued->begin(hosts);
    return rescued->waits();
  };
  board.wants_hold = [this] { return workload_->saves() != nullptr && workload_->saves()->wants_hold(); };
  board.held = [this](uint64_t highest) {
    if (workload_->saves() != nullptr) workload_->saves()->held(highest);
  };
  board.kept_bytes = [this]() -> std::map<std::string, int64_t> {
    if (spec().has_command() || attempt_ == 0) return {};
    return {{kMetricsFile, keep_metrics(directory_, workload_->first_step())}};
  };
  board.given = [this] { return workload_->given(); };
  hosts::AgentRanks ranks(launch, std::move(options), std::move(board), loop_);
  if (elastic_) elastic_->use_listeners([&ranks](const std::string& host) { return ranks.link_listener(host); });
  bool takes_back = false;
  launch.on_restart = [&, prepare = launch.on_restart](int attempt) {
    restart_on_hosts(ranks, [&] { prepare(attempt); });
    follow_board();
    takes_back = false;  // the ranks that were asked to stop have ended for another reason
  };
  if (launch.ask_to_stop) launch.ask_to_stop = [&] { ranks.ask_to_stop(); };
  if (launch.progress)
    launch.progress = [&, progress = launch.progress](int rank) {
      auto seen = progress(rank);
      // Nothing is known about a rank whose host is disconnected, so it does not count as stalled.
      if (seen && !ranks.is_heard(rank)) seen->position ^= ++unheard_;
      return seen;
    };
  launch.on_tick = [&] {
    tick();
    if (!takes_back && is_time_to_take_back()) {
      takes_back = true;
      ranks.ask_to_stop();  // this saves the last state
    }
  };
  Outcome outcome = supervise(launch, ranks, loop_);
  if (elastic_) elastic_->use_listeners(nullptr);  // the agents have ended
  return outcome;
}

JobSpec Run::resolved_job() const {
  JobSpec resolved = spec();  // workers read it from another folder, so paths must be absolute
  resolved.launch.log_dir = fs::absolute(resolved.launch.log_dir);
  if (auto& saves = resolved.train.checkpoint; saves && !saves->dir.empty()) saves->dir = fs::absolute(saves->dir);
  return resolved;
}

/// The job for other hosts, where job.yaml is two levels below the agent's folder with the copied files.
JobSpec Run::job_on_hosts() const {
  JobSpec job = resolved_job();
  const auto place = [&](std::vector<std::string>& paths) {
    for (std::string& path : paths)
      if (const auto copied = hosts::copied_path(job.launch.copy, path)) path = "../../" + *copied;
  };
  place(job.dataset.paths);
  if (job.validation) place(job.validation->dataset.paths);
  return job;
}

void Run::write_job() const {
  directory_.write("job.yaml", to_yaml(resolved_job()), readers_of(spec()));
  directory_.write("plan.json", workload_->plan().dump(2) + "\n");
  directory_.write("machine.json", machine_json(host_facts(), TRAINCTL_VERSION));
  directory_.reserve_outcome();
}

void Run::register_run() {
  RegisteredRun entry;
  entry.run = directory_.run();
  entry.name = spec().name;
  entry.log_dir = fs::absolute(spec().launch.log_dir).lexically_normal();
  entry.job = spec().file == kStdinName ? spec().file : fs::absolute(spec().file).lexically_normal().string();
  entry.launcher = getpid();
  entry.ranks = cluster_.num_ranks();
  entry.started = wall_seconds();
  try {
    registration_.emplace(entry);
  } catch (const EnvError& error) {
    view_->notice(std::string(error.what()) + "; trainctl ps will not list this run");
  }
}

void Run::watch_signals() {
  signals_.async_wait([this](const boost::system::error_code& error, int signal) {
    if (error) return;
    // A program may interpret SIGUSR1 as it likes; a job with checkpoints saves one.
    if (signal == SIGUSR1 && (spec().has_command() || spec().train.saves_state())) return watch_signals();
    stopping_ = true;
    ++stop_signals_;
    watch_signals();
  });
}

Launch Run::launch() {
  Launch launch{.cluster = cluster_, .directory = directory_, .command = [this](const RankPlace& place, int) {
                  return workload_->command(place, directory_);
                }};
  launch.limits.grace_seconds = spec().launch.grace_seconds;
  launch.limits.max_restarts = spec().launch.max_restarts;
  launch.limits.lost_host_ends = elastic_.has_value();
  launch.log_limits = {.file_bytes = spec().launch.log_size, .files = spec().launch.log_files};
  if (!spec().launch.has_hosts()) launch.bindings = bindings(cluster_, read_topology(), spec().launch.bind);
  workload_->connect(launch);
  launch.on_rank_started = [this, told = launch.on_rank_started](int rank, int pid) {
    ++started_;
    folder_.keep();
    pids_[static_cast<size_t>(rank)] = spec().launch.has_hosts() ? 0 : std::max(pid, 0);
    if (told) told(rank, pid);
  };
  launch.on_restart = [this](int attempt) {
    attempt_ = first_attempt_ + attempt;
    started_ = 0;
    workload_->prepare(attempt_, directory_);
    if (!spec().launch.has_hosts() && !spec().has_command()) keep_metrics(directory_, workload_->first_step());
  };
  launch.on_line = [this](int rank, std::string_view line) { show(rank, line); };
  // Programs write more than errors to stderr. Ranks of a network write only errors, which the failure report shows.
  if (spec().has_command()) launch.on_error_line = launch.on_line;
  launch.on_tick = [this] { tick(); };
  launch.on_notice = [this](std::string_view message) { view_->notice(message); };
  return launch;
}

void Run::show(int rank, std::string_view line) {
  const bool is_shown = std::binary_search(shown_.begin(), shown_.end(), rank);
  if (rank == 0) view_->listen(line, (is_shown && background_ == nullptr) || spec().has_command());
  // The logs of a detached run contain all lines and are rotated; launcher.log is not.
  if (background_ != nullptr || !is_shown) return;
  if (shown_.size() == 1)
    view_->line(line);
  else
    view_->line_of(rank, line);
}

std::string Run::processes_text() const { return trainctl::processes_text(spec().launch.ranks, spec().servers()); }

LiveStatus Run::status() {
  LiveStatus status;
  const bool up = started_ == cluster_.num_ranks() && workload_->is_up();
  status.state = stopping_ ? "stopping" : up ? "running" : attempt_ > 0 ? "restarting" : "starting";
  status.attempt = attempt_;
  status.max_restarts = spec().launch.max_restarts;
  status.pids = pids_;
  workload_->describe(status);
  memory_.look(status.pids, status.gpus);
  status.memory_bytes = memory_.resident_bytes();
  status.gpu_memory_bytes = memory_.gpu_bytes();
  return status;
}

void Run::tick() {
  report_news();
  if (elastic_) {
    elastic_->look();
    plan_ahead();
    note_progress();
  }
  const bool view_due = view_->tick();
  const bool publish_due = registration_ && Clock::now() - published_ >= kPublish;
  if (background_ != nullptr && background_->holds_on()) let_go();
  if (!view_due && !publish_due) return;
  const LiveStatus now = status();
  if (view_due) view_->update(now);
  if (!publish_due) return;
  published_ = Clock::now();
  registration_->publish(now);
}

void Run::report_news() {
  for (const std::string& line : workload_->news(directory_))
    if (!line.empty()) view_->news(line);
}

/// Returns the user's prompt once all ranks have certainly started.
void Run::let_go() {
  if (started_ < cluster_.num_ranks() || !workload_->is_up()) return;
  const std::string number = std::to_string(directory_.run());
  const std::string where =
      spec().launch.log_dir == LaunchSpec{}.log_dir ? number : number + " --log-dir " + spec().launch.log_dir;
  background_->let_go(spec().name + ": run " + number + " started, " + processes_text() + ", logs in " +
                          directory_.path() + "\n  trainctl attach " + where + "\n  trainctl logs " + where +
                          " --follow\n  trainctl stop " + where + "\n",
                      log_->fd());
}

/// Returns the exit code, which reports failure if the last state is not on disk.
int Run::finish(Outcome outcome) {
  if (!outcome.disk_hangs) {
    report_news();       // a run may be shorter than a tick
    block_interrupts();  // from here on they are counted
    int signals_left = 2 - stop_signals_;
    const auto is_hurried = [&] { return (signals_left -= take_interrupts()) <= 0; };
    for (const std::string& line : workload_->finish(is_hurried))
      view_->news(line);  // outcome.json names the last checkpoint
  }
  RunResult result = workload_->result();
  if (outcome.cause.kind != Cause::Kind::none) result.unsaved.clear();  // the failure explains it
  if (outcome.exit_code == kExitDone && !result.unsaved.empty()) outcome.exit_code = kExitEnv;
  folder_.keep();
  const std::string report = failure_report(outcome, cluster_, directory_);
  const std::string trouble = write_outcome(outcome, report, result);
  if (!trouble.empty()) view_->failure(trouble);  // does not change how the ranks ended
  RunEnd end = run_end(outcome, result);
  if (!outcome.disk_hangs && !spec().has_command()) gather_files();
  if (!outcome.disk_hangs) end.report = report_of_workload();
  if (elastic_ && !elastic_->summary().empty()) end.report += (end.report.empty() ? "" : "\n") + elastic_->summary();
  view_->end(end, directory_);  // may wait for the reader of our output
  const std::string last_output = result.unsaved.empty() ? report : result.unsaved + "\n";
  if (outcome.exit_code == kExitRankFailed || !result.unsaved.empty()) {
    view_->failure(last_output);
    if (background_ != nullptr && background_->holds_on() &&
        write(log_->fd(), last_output.data(), last_output.size()) < 0) {
      // The failure was already reported on the terminal.
    }
  }
  if (log_) log_->flush(outcome.disk_hangs ? kHangingDiskSeconds : kDiskSeconds);
  return outcome.exit_code;
}

/// Joins the files that ranks of several hosts have written separately.
void Run::gather_files() {
  gather_metrics(directory_);
  try {
    if (spec().launch.has_hosts()) join_npy_shards(directory_.file("tensors"));
  } catch (const EnvError& error) {
    view_->news(std::string("cannot join the parts of printed tensors: ") + error.what());
  }
}

std::string Run::report_of_workload() const {
  try {
    return workload_->report(directory_);
  } catch (const EnvError& error) {
    return error.what();  // does not change the run's result
  }
}

/// Returns lines about what could not be written.
std::string Run::write_outcome(const Outcome& outcome, const std::string& report, const RunResult& result) const {
  const auto written = in_child(outcome.disk_hangs ? kHangingDiskSeconds : kDiskSeconds, [&] {
    std::string trouble;
    const auto attempt = [&](const std::function<void()>& write) {
      try {
        write();
      } catch (const EnvError& error) {
        trouble += std::string(error.what()) + "\n";
      }
    };
    if (outcome.cause.kind != Cause::Kind::none) {
      auto json = nlohmann::ordered_json::parse(failure_json(outcome, cluster_));
      json["report"] = report;
      const std::string text = json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
      attempt([&] { directory_.write("error.json", text); });
    }
    attempt([&] {
      auto all = nlohmann::ordered_json::parse(with_result(outcome_json(outcome), result));
      if (elastic_) all.update(elastic_->report());
      all.update(workload_->record(directory_));
      RunResult brief = result;
      brief.unsaved.clear();
      directory_.write_outcome(all.dump() + "\n", with_result(brief_outcome_json(outcome), brief));
    });
    return trouble;
  });
  return written.value_or("the disk of " + directory_.path() +
                          " is not responding: cannot write outcome.json, so trainctl ps will list this run as lost\n");
}

}  // namespace trainctl
