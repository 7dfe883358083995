// The ranks that run on this host: their processes, CPU bindings, guardian processes (they kill the ranks if the
// launcher dies), output pipes, and the error files that ranks write when they fail.
#include "launcher/local_ranks.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <utility>

#include "engine/base/error.h"
#include "launcher/control_group.h"
#include "launcher/log_disk.h"
#include "launcher/quiet_fork.h"
#include "launcher/reported_error.h"
#include "launcher/stragglers.h"
#include "launcher/torch_error.h"

namespace trainctl {
namespace {

constexpr int kLastLines = 20;  ///< stderr lines of a failed rank that its report quotes
constexpr double kReadSeconds = 2;

bool sets(const ProcessCommand& command, std::string_view name) {
  return std::any_of(command.environment.begin(), command.environment.end(),
                     [&](const auto& variable) { return variable.first == name; });
}

bool blames_peer(const RankReport& report) {
  if (report.error && report.error->kind == ErrorKind::comm) return true;
  return !report.error && mentions_peer(report.last_lines);
}

std::vector<RankBinding> bindings_of(const Launch& launch) {
  return launch.bindings.empty() ? bindings(launch.cluster, read_topology(), BindMode::none) : launch.bindings;
}

}  // namespace

LocalRanks::LocalRanks(const Launch& launch, ProcessRunner& runner, boost::asio::io_context& loop, LogSink* sink)
    : launch_(launch),
      runner_(runner),
      kills_explained_(out_of_memory_kills()),
      bindings_(bindings_of(launch)),
      mark_(random_mark()),
      guardian_(launch.cluster.num_ranks(), mark_),
      disk_(sink != nullptr ? nullptr
                            : std::make_unique<LogDisk>(loop, launch.directory, launch.log_limits,
                                                        [this](const std::string& message) {
                                                          if (events_.notice) events_.notice(message);
                                                        })),
      logs_(
          loop, sink != nullptr ? *sink : *disk_, launch.cluster.num_ranks(),
          [&launch](int rank, std::string_view line, bool is_error) { launch.observer.on_line(rank, line, is_error); }),
      children_(loop, SIGCHLD) {}

LocalRanks::~LocalRanks() = default;

void LocalRanks::listen(Events events) {
  events_ = std::move(events);
  await_child();
}

void LocalRanks::start(const RankPlace& place, int attempt) {
  int& pid = pids_[place.rank];
  try {
    const LogCollector::WriteEnds ends = logs_.open(place.rank, attempt);
    ProcessCommand command = launch_.program.command(place, attempt);
    command.stdout_fd = ends.out;
    command.stderr_fd = ends.err;
    const RankBinding& binding = bindings_[static_cast<size_t>(place.local_rank)];
    command.cpus = binding.cpus;
    if (std::getenv("OMP_NUM_THREADS") == nullptr && !sets(command, "OMP_NUM_THREADS")) {
      command.environment.emplace_back("OMP_NUM_THREADS", std::to_string(binding.threads));
    }
    command.mark = mark_ + "." + std::to_string(place.rank) + ".";
    command.environment.push_back(mark_variable(command.mark));
    command.leftover_seconds = launch_.limits.grace_seconds;
    if (!binding.cpus.empty()) command.environment.emplace_back("TRAINCTL_HOST_CORES", std::to_string(bound_cpus()));
    pid = runner_.start(command);
  } catch (const EnvError& error) {
    events_.failed_to_start(place.rank, error.what());
    return;
  }
  guardian_.watch(pid);
  rank_of_pid_[pid] = place.rank;
  logs_.started(place.rank);
  events_.started(place.rank);
  launch_.program.started(place.rank, pid);
  launch_.observer.on_rank_started(place.rank, pid);
}

/// Number of CPUs to which the ranks are bound.
size_t LocalRanks::bound_cpus() const {
  std::set<int> cpus;
  for (const RankBinding& binding : bindings_) cpus.insert(binding.cpus.begin(), binding.cpus.end());
  return cpus.size();
}

void LocalRanks::signal(int rank, int signal) {
  if (stop_time_ == 0) stop_time_ = wall_seconds();
  runner_.signal_group(pids_.at(rank), signal);
}

bool LocalRanks::is_frozen(int rank) { return runner_.is_frozen(pids_.at(rank)); }

void LocalRanks::restart(int attempt) {
  stop_time_ = 0;
  kill_leftovers(mark_.c_str());
  pids_.clear();
  rank_of_pid_.clear();
  put_errors_aside(attempt - 1);
}

/// Renames the error files of an attempt, so that they are not mistaken for those of the next.
void LocalRanks::put_errors_aside(int attempt) const {
  in_child(kReadSeconds, [&] {
    for (const RankPlace& place : launch_.cluster.places) {
      for (const std::string_view name : {std::string_view("error.json"), kTorchErrorFile}) {
        const std::string stem(name.substr(0, name.rfind('.')));
        const std::string kept = stem + ".attempt-" + std::to_string(attempt) + ".json";
        std::rename(launch_.directory.rank_file(place.rank, name).c_str(),
                    launch_.directory.rank_file(place.rank, kept).c_str());
      }
    }
    return std::string();
  });
}

void LocalRanks::await_child() {
  children_.async_wait([this, alive = std::weak_ptr(alive_)](const boost::system::error_code& error, int) {
    if (error || alive.expired()) return;
    reap();
    guarded_ = guardian_.replace_dead();
    await_child();
  });
}

void LocalRanks::reap() {
  std::vector<ProcessEnd> ends = runner_.reap();
  // The order of ranks found dead at once is unknown; assume that a killed one caused the others to end.
  std::stable_sort(ends.begin(), ends.end(),
                   [](const ProcessEnd& a, const ProcessEnd& b) { return a.signaled && !b.signaled; });
  for (const ProcessEnd& end : ends) {
    const auto found = rank_of_pid_.find(end.pid);
    if (found == rank_of_pid_.end()) continue;
    rank_ended(found->second, end);
  }
}

void LocalRanks::report_leftovers(const LeftProcesses& left) {
  const auto found = rank_of_pid_.find(left.pid);
  if (found == rank_of_pid_.end() || !events_.notice) return;
  char grace[32];
  std::snprintf(grace, sizeof grace, "%g s", launch_.limits.grace_seconds);
  events_.notice(launch_.cluster.names.name(found->second) + " exited with code 0, but left processes running: " +
                 left.left + "; it counts as failed unless they end within launch.grace (" + grace + ")");
}

void LocalRanks::rank_ended(int number, const ProcessEnd& end) {
  guardian_.forget(end.pid);
  rank_of_pid_.erase(end.pid);
  logs_.finish(number);
  RankReport report;
  report.state = ProcessState::ended;
  report.end = end;
  report.time = wall_seconds();
  if (report.failed()) {
    report.error = error_of(number);
    report.last_lines = logs_.last_lines(number, kLastLines);
    report.failed_unasked = report.error && (stop_time_ == 0 || report.error->time < stop_time_);
    report.blames_peer = !ranks_explain() && blames_peer(report);
  }
  report.out_of_memory = end.signaled && end.code == SIGKILL && killed_for_memory();
  report.doing = launch_.program.doing(number);
  launch_.program.ended(number, report.failed());
  events_.ended(number, std::move(report));
}

std::optional<RankError> LocalRanks::error_of(int rank) {
  if (disk_hangs()) return std::nullopt;
  ReportedError reported = reported_error(launch_.directory, rank, ranks_explain());
  reading_hangs_ = reported.disk_hangs;
  return std::move(reported.error);
}

/// Returns true if the kernel has counted an out-of-memory kill that no earlier death explains.
bool LocalRanks::killed_for_memory() {
  if (out_of_memory_kills() <= kills_explained_) return false;
  ++kills_explained_;
  return true;
}

void LocalRanks::look() {
  if (disk_) disk_->look();
  reap();
  for (const LeftProcesses& left : runner_.new_leftovers()) report_leftovers(left);
  if (!guarded_) guarded_ = guardian_.replace_dead();
}

void LocalRanks::end() {
  if (disk_) disk_->end();
}

bool LocalRanks::disk_hangs() const { return (disk_ && disk_->hangs()) || reading_hangs_; }

}  // namespace trainctl
