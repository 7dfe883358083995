// The launcher's side of a run: connects its folder, its display and its workload with the supervisor.
#include "cli/run/launch/run.h"

#include <algorithm>
#include <csignal>
#include <nlohmann/json.hpp>
#include <utility>

#include "cli/run/launch/elastic_run.h"
#include "cli/run/launch/hosts_run.h"
#include "cli/run/launch/local_run.h"
#include "cli/run/launch/metrics_file.h"
#include "cli/run/launch/run_end.h"
#include "cli/run/launch/run_files.h"
#include "cli/run/worker/metrics_log.h"
#include "engine/base/error.h"
#include "engine/base/machine_limits.h"
#include "launcher/failure_report.h"
#include "launcher/signals.h"

namespace trainctl {
namespace {

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

}  // namespace

Run::Run(std::unique_ptr<Workload> workload, RunDisplayOptions display, boost::asio::io_context& loop)
    : workload_(std::move(workload)),
      loop_(loop),
      cluster_(cluster_of(spec())),
      directory_(RunDirectory::create(spec().launch.log_dir, spec().launch.ranks, spec().servers())),
      folder_(directory_),
      lock_(directory_),
      display_(directory_, std::move(display)),
      signals_(loop),
      pids_(static_cast<size_t>(cluster_.num_ranks())) {
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
      write_failure(directory_, refusal.value_or(error.what()), is_env ? kExitEnv : kExitBug, seconds());
    throw;
  }
}

int Run::supervise_ranks() {
  write_job(directory_, *workload_);
  workload_->prepare(0, directory_);
  display_.begin(spec(), workload_->device(), cluster_.num_ranks());
  watch_signals();
  const int exit_code = finish(run_ranks());
  block_interrupts();  // a later signal does not change the result
  return exit_code;
}

void Run::watch_signals() {
  signals_.async_wait([this](const boost::system::error_code& error, int signal) {
    if (error) return;
    // A program may interpret SIGUSR1 as it likes; a job with checkpoints saves one.
    if (signal == SIGUSR1 && (spec().has_command() || spec().train.saves_state())) return watch_signals();
    ++stop_signals_;
    stop_requested();
    watch_signals();
  });
}

Launch Run::launch() {
  Launch launch{.cluster = cluster_, .directory = directory_, .program = workload_->program(), .observer = *this};
  launch.limits.grace_seconds = spec().launch.grace_seconds;
  launch.spot = {spec().launch.spot_notices, spec().launch.spot_address};
  launch.limits.max_restarts = spec().launch.max_restarts;
  launch.log_limits = {.file_bytes = spec().launch.log_size, .files = spec().launch.log_files};
  if (!spec().launch.has_hosts()) launch.bindings = bindings(cluster_, read_topology(), spec().launch.bind);
  workload_->configure(launch);
  return launch;
}

void Run::replace(std::unique_ptr<Workload> workload) {
  first_attempt_ = ++attempt_;
  workload_ = std::move(workload);
  cluster_ = cluster_of(spec());
  started_ = 0;
  pids_.assign(static_cast<size_t>(cluster_.num_ranks()), 0);
}

void Run::on_rank_started(int rank, int pid) {
  ++started_;
  folder_.keep();
  if (trackers_) trackers_->start(directory_);
  pids_[static_cast<size_t>(rank)] = std::max(pid, 0);
}

void Run::on_restart(int attempt) {
  attempt_ = first_attempt_ + attempt;
  started_ = 0;
  workload_->prepare(attempt_, directory_);
}

void Run::on_line(int rank, std::string_view line, bool is_error) {
  // Programs write more than errors to stderr. Ranks of a network write only errors, which the failure report shows.
  if (!is_error || spec().has_command()) display_.line(rank, line, spec().has_command());
}

void Run::on_tick() {
  report_news();
  look();
  // The user's prompt returns once all ranks have certainly started.
  if (display_.waits_for_start() && have_started()) display_.let_go(spec());
  display_.update([this] { return status(); });
}

bool Run::have_started() const { return started_ >= cluster_.num_ranks() && workload_->reports().is_up(); }

LiveStatus Run::status() {
  LiveStatus status;
  status.state = is_stopping() ? "stopping" : have_started() ? "running" : attempt_ > 0 ? "restarting" : "starting";
  status.attempt = attempt_;
  status.max_restarts = spec().launch.max_restarts;
  status.pids = pids_;
  reports().describe(status);
  memory_.look(status.pids, status.gpus);
  status.memory_bytes = memory_.resident_bytes();
  status.gpu_memory_bytes = memory_.gpu_bytes();
  return status;
}

void Run::report_news() {
  for (const std::string& line : reports().news())
    if (!line.empty()) view().news(line);
  if (!trackers_) return;
  for (const std::string& line : trackers_->news()) view().news(line);
}

/// Returns the exit code, which reports failure if the last state is not on disk.
int Run::finish(Outcome outcome) {
  if (!outcome.disk_hangs)
    for (const std::string& line : finish_workload()) view().news(line);  // outcome.json names the last checkpoint
  RunResult result = reports().result();
  if (!spec().has_command() && !outcome.disk_hangs) {
    gather_metrics(directory_);  // before outcome.json, which ends the trackers
    add_validations(result);
  }
  if (outcome.cause.kind != Cause::Kind::none) result.unsaved.clear();  // the failure explains it
  if (outcome.exit_code == kExitDone && !result.unsaved.empty()) outcome.exit_code = kExitEnv;
  folder_.keep();
  const std::string report = failure_report(outcome, cluster_, directory_);
  const std::string trouble = write_outcome(directory_, {outcome, cluster_, result, report}, [this] {
    nlohmann::ordered_json more = changes();
    more.update(reports().record());
    return more;
  });
  if (!trouble.empty()) view().failure(trouble);  // does not change how the ranks ended
  if (!outcome.disk_hangs) finish_trackers();
  show_end(outcome, result, report);
  return outcome.exit_code;
}

/// metrics.jsonl is complete.
void Run::add_validations(RunResult& result) const {
  result.validation = read_validations(directory_.file(kMetricsFile));
  if (result.validation.ended_early()) result.steps = std::max(result.steps, result.validation.planned_steps);
}

/// Waits for the workload's background work, until the user's second signal. Returns lines for the user.
std::vector<std::string> Run::finish_workload() {
  report_news();       // a run may be shorter than a tick
  view().tick();       // shows the last lines before the wait for a disk
  block_interrupts();  // from here on they are counted
  return reports().finish([this] { return is_hurried(); });
}

/// Returns whether the user has asked twice to stop.
bool Run::is_hurried() {
  late_signals_ += take_interrupts();
  return stop_signals_ + late_signals_ >= 2;
}

/// They stop following once outcome.json is written.
void Run::finish_trackers() {
  if (!trackers_) return;
  const auto show_now = [this](const std::string& line) {
    view().news(line);
    view().tick();
  };
  view().tick();  // shows the last lines before the wait
  for (const std::string& line : trackers_->finish([this] { return is_hurried(); }, show_now)) view().news(line);
}

void Run::show_end(const Outcome& outcome, const RunResult& result, const std::string& report) {
  RunEnd end = run_end(outcome, result);
  if (!outcome.disk_hangs && !spec().has_command() && spec().launch.has_hosts())
    if (const std::string line = join_printed_tensors(directory_); !line.empty()) view().news(line);
  if (!outcome.disk_hangs) end.report = summary();
  if (const std::string line = changes_line(); !line.empty()) end.report += (end.report.empty() ? "" : "\n") + line;
  view().end(end, directory_);  // may wait for the reader of our output
  if (outcome.exit_code == kExitRankFailed || !result.unsaved.empty())
    display_.failure(result.unsaved.empty() ? report : result.unsaved + "\n");
  display_.flush(outcome.disk_hangs ? kHangingDiskSeconds : kDiskSeconds);
}

std::string Run::summary() {
  try {
    return reports().summary();
  } catch (const EnvError& error) {
    return error.what();  // does not change the run's result
  }
}

nlohmann::ordered_json Run::changes() const { return nlohmann::ordered_json::object(); }

std::unique_ptr<Run> make_run(std::unique_ptr<Workload> workload, RunDisplayOptions display,
                              boost::asio::io_context& loop, std::shared_ptr<const hosts::Transport> transport,
                              Replan replan) {
  const LaunchSpec& spec = workload->spec().launch;
  if (!transport) transport = hosts::transport_of(spec);
  if (!spec.has_hosts()) return std::make_unique<LocalRun>(std::move(workload), std::move(display), loop);
  if (!spec.elastic || !replan.now)
    return std::make_unique<HostsRun>(std::move(workload), std::move(display), loop, std::move(transport));
  return std::make_unique<ElasticRun>(std::move(workload), std::move(display), loop, std::move(transport),
                                      std::move(replan));
}

}  // namespace trainctl
