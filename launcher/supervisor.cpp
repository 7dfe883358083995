// The event loop around Supervision.
#include "launcher/supervisor.h"

#include <algorithm>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>

#include "engine/base/error.h"
#include "launcher/control_group.h"
#include "launcher/failure_report.h"
#include "launcher/guardian.h"
#include "launcher/log_collector.h"
#include "launcher/quiet_fork.h"
#include "launcher/stragglers.h"
#include "launcher/torch_error.h"

namespace trainctl {
namespace {

namespace asio = boost::asio;
using Clock = std::chrono::steady_clock;

constexpr auto kTick = std::chrono::milliseconds(25);
constexpr int kPollsAStart = 16;
constexpr int kLastWords = 20;  ///< lines
constexpr double kReadSeconds = 2;

bool sets(const ProcessCommand& command, std::string_view name) {
  return std::any_of(command.environment.begin(), command.environment.end(),
                     [&](const auto& variable) { return variable.first == name; });
}

void unblock_interrupts() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGUSR1}) sigaddset(&signals, number);
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
}

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

bool all_ended_well(const std::vector<RankReport>& reports) {
  return std::all_of(reports.begin(), reports.end(),
                     [](const RankReport& report) { return report.state == ProcessState::ended && !report.failed(); });
}

class Supervisor {
 public:
  Supervisor(const Launch& launch, ProcessRunner& runner, asio::io_context& loop)
      : launch_(launch),
        runner_(runner),
        bindings_(launch.bindings.empty() ? bindings(launch.cluster.places, read_topology(), BindMode::none)
                                          : launch.bindings),
        guardian_(launch.cluster.num_ranks(), mark_),
        supervision_(launch.cluster.num_ranks(), launch.limits, reach()),
        loop_(loop),
        logs_(loop_, launch.directory, launch.log_limits, launch.cluster.num_ranks(),
              {.on_line = launch.on_line,
               .on_error_line = launch.on_error_line,
               .on_notice = [this](const std::string& message) { notice(message); }}),
        children_(loop_, SIGCHLD),
        interrupts_(loop_, SIGINT, SIGTERM, SIGHUP),
        timer_(loop_) {
    interrupts_.add(SIGUSR1);
    unblock_interrupts();
    std::signal(SIGPIPE, SIG_IGN);  // keep running when the reader of our output goes away
    std::signal(SIGXFSZ, SIG_IGN);  // or a file reaches `ulimit -f`: the write fails with EFBIG
  }

  Outcome run() {
    await_child();
    await_interrupt();
    start_all();
    tick();
    for (;;) {
      if (supervision_.restart_due()) {
        restart();
      } else if (supervision_.done() || loop_.run_one() == 0) {
        return end();
      }
    }
  }

 private:
  double now() const { return seconds_since(start_); }

  Supervision::Reach reach() {
    Supervision::Reach reach;
    reach.signal_rank = [this](int rank, int signal) {
      if (stop_time_ == 0) stop_time_ = wall_seconds();
      runner_.signal_group(pids_.at(rank), signal);
    };
    reach.ask_to_stop = launch_.ask_to_stop;
    reach.is_frozen = [this](int rank) { return runner_.is_frozen(pids_.at(rank)); };
    return reach;
  }

  void start_all() {
    for (const RankPlace& place : launch_.cluster.places) {
      if (!supervision_.may_start()) break;
      start_rank(place);
      // Handles Ctrl-C and early deaths while others still start. Not poll(): it would not return while a rank floods
      // us.
      for (int i = 0; i < kPollsAStart && loop_.poll_one() > 0; ++i) {
      }
    }
  }

  void start_rank(const RankPlace& place) {
    int& pid = pids_[place.rank];
    try {
      const LogCollector::WriteEnds ends = logs_.open(place.rank, supervision_.attempt());
      ProcessCommand command = launch_.command(place, supervision_.attempt());
      command.stdout_fd = ends.out;
      command.stderr_fd = ends.err;
      const RankBinding& binding = bindings_[static_cast<size_t>(place.rank)];
      command.cpus = binding.cpus;
      if (std::getenv("OMP_NUM_THREADS") == nullptr && !sets(command, "OMP_NUM_THREADS")) {
        command.environment.emplace_back("OMP_NUM_THREADS", std::to_string(binding.threads));
      }
      command.environment.push_back(mark_variable(mark_));
      if (!binding.cpus.empty()) command.environment.emplace_back("TRAINCTL_HOST_CORES", std::to_string(bound_cpus()));
      pid = runner_.start(command);
    } catch (const EnvError& error) {
      supervision_.failed_to_start(place.rank, error.what(), wall_seconds(), now());
      return;
    }
    guardian_.watch(pid);
    rank_of_pid_[pid] = place.rank;
    logs_.started(place.rank);
    supervision_.started(place.rank, now());
    if (launch_.on_rank_started) launch_.on_rank_started(place.rank, pid);
  }

  /// The number of CPUs that all ranks together are bound to.
  size_t bound_cpus() const {
    std::set<int> cpus;
    for (const RankBinding& binding : bindings_) cpus.insert(binding.cpus.begin(), binding.cpus.end());
    return cpus.size();
  }

  void restart() {
    const Cause cause = find_first_cause(supervision_.reports());
    const std::string message = cause_line(supervision_.reports(), cause, launch_.cluster);
    failed_attempts_.push_back({cause, message, now()});
    supervision_.restart();
    stop_time_ = 0;
    notice(message + "; restarting all ranks (" + std::to_string(supervision_.attempt()) + " of " +
           std::to_string(launch_.limits.max_restarts) + ")");
    kill_stragglers(mark_.c_str());
    pids_.clear();
    rank_of_pid_.clear();
    put_errors_aside();
    if (launch_.on_restart) launch_.on_restart(supervision_.attempt());
    start_all();
  }

  /// Renames the errors of the last attempt, so that they are not taken for those of the next.
  void put_errors_aside() const {
    in_child(kReadSeconds, [&] {
      for (const RankPlace& place : launch_.cluster.places) {
        for (const std::string_view name : {std::string_view("error.json"), kTorchErrorFile}) {
          const std::string stem(name.substr(0, name.rfind('.')));
          const std::string kept = stem + ".attempt-" + std::to_string(supervision_.attempt() - 1) + ".json";
          std::rename(launch_.directory.rank_file(place.rank, name).c_str(),
                      launch_.directory.rank_file(place.rank, kept).c_str());
        }
      }
      return std::string();
    });
  }

  void await_child() {
    children_.async_wait([this](const boost::system::error_code& error, int) {
      if (error) return;
      reap();
      guarded_ = guardian_.replace_dead();
      await_child();
    });
  }

  void await_interrupt() {
    interrupts_.async_wait([this](const boost::system::error_code& error, int signal) {
      if (error) return;
      await_interrupt();
      if (signal == SIGUSR1 && launch_.on_user_signal) return launch_.on_user_signal();
      const bool first = supervision_.interrupt_signal() == 0;
      supervision_.interrupted(signal, now());
      notice(signal_name(signal) + (first ? first_answer() : " again: killed the ranks"));
    });
  }

  std::string first_answer() const {
    if (!supervision_.asking()) return ": told the ranks to stop; a second one kills them";
    char grace[32];
    std::snprintf(grace, sizeof grace, "%g s", launch_.limits.grace_seconds);
    const std::string what = launch_.ask_to_stop ? ": the ranks end after this step" : ": passed on to the ranks";
    return what + ", or are stopped in " + grace + "; a second one kills them";
  }

  void reap() {
    std::vector<ProcessEnd> ends = runner_.reap();
    // The order of ranks found dead in one look is unknown: assume that a killed one caused the others to end.
    std::stable_sort(ends.begin(), ends.end(),
                     [](const ProcessEnd& a, const ProcessEnd& b) { return a.signaled && !b.signaled; });
    for (const ProcessEnd& end : ends) {
      const auto found = rank_of_pid_.find(end.pid);
      if (found == rank_of_pid_.end()) continue;
      rank_ended(found->second, end);
    }
  }

  void rank_ended(int number, const ProcessEnd& end) {
    guardian_.forget(end.pid);
    logs_.finish(number);
    RankReport report;
    report.state = ProcessState::ended;
    report.end = end;
    report.time = wall_seconds();
    if (end.signaled || end.code != 0) {
      report.error = error_of(number);
      report.last_words = logs_.last_words(number, kLastWords);
      report.failed_unasked = report.error && (stop_time_ == 0 || report.error->time < stop_time_);
      report.blames_peer = !ranks_explain() && blames_peer(report);
    }
    report.out_of_memory = end.signaled && end.code == SIGKILL && killed_for_memory();
    if (launch_.doing) report.doing = launch_.doing(number);
    if (launch_.on_rank_ended) launch_.on_rank_ended(number, report.failed());
    const std::string how = describe(end) + (report.doing.empty() ? "" : " at " + report.doing);
    supervision_.ended(number, std::move(report), now());
    if (!supervision_.reports()[static_cast<size_t>(number)].spared) return;
    const bool rejoins = supervision_.rejoin(number);
    notice(launch_.cluster.names.name(number) + " " + how + "; the other workers go on" +
           (rejoins ? ", and another takes its place" : ""));
    if (!rejoins) return;
    rank_of_pid_.erase(end.pid);
    if (launch_.on_rejoin) launch_.on_rejoin(number);
    start_rank(launch_.cluster.places[static_cast<size_t>(number)]);
  }

  bool ranks_explain() const { return launch_.limits.ranks_explain; }

  /// What the failed rank wrote about its failure. From the disk, which may not answer.
  std::optional<RankError> error_of(int rank) {
    if (reading_hangs_ || logs_.disk_hangs()) return std::nullopt;
    const auto text = in_child(kReadSeconds, [&] {
      const auto error = ranks_explain() ? read_rank_error(launch_.directory.rank_path(rank))
                                         : read_torch_error(launch_.directory.rank_file(rank, kTorchErrorFile));
      return error ? to_json(*error) : std::string();
    });
    reading_hangs_ = !text;
    return text ? parse_rank_error(*text) : std::nullopt;
  }

  static bool blames_peer(const RankReport& report) {
    if (report.error && report.error->kind == ErrorKind::comm) return true;
    return !report.error && tells_of_peer(report.last_words);
  }

  /// Each out-of-memory kill that the kernel counted explains one death.
  bool killed_for_memory() {
    if (out_of_memory_kills() <= kills_explained_) return false;
    ++kills_explained_;
    return true;
  }

  void look_at_progress() {
    if (!launch_.progress) return;
    for (const auto& [pid, number] : rank_of_pid_) {
      if (const auto progress = launch_.progress(number)) supervision_.progressed(number, *progress, now());
    }
  }

  void tick() {
    logs_.watch_disk();
    if (!guarded_) guarded_ = guardian_.replace_dead();
    look_at_progress();
    supervision_.advance(now());
    if (launch_.on_tick) launch_.on_tick();
    timer_.expires_after(kTick);
    timer_.async_wait([this](const boost::system::error_code& error) {
      if (!error) tick();
    });
  }

  void notice(const std::string& message) {
    if (launch_.on_notice) launch_.on_notice(message);
  }

  Outcome end() {
    for (const int rank : supervision_.stuck()) {
      notice(launch_.cluster.names.name(rank) +
             " did not end after SIGKILL: it waits for a disk or a device that does not answer");
    }
    logs_.end();
    return outcome();
  }

  Outcome outcome() const {
    Outcome outcome;
    outcome.disk_hangs = logs_.disk_hangs() || reading_hangs_;
    outcome.signal = supervision_.ending_signal();
    outcome.seconds = now();
    outcome.reports = supervision_.reports();
    outcome.cause = find_first_cause(outcome.reports);
    outcome.failed_attempts = failed_attempts_;
    if (outcome.signal != 0 && launch_.ask_to_stop && launch_.stopped_at && all_ended_well(outcome.reports)) {
      outcome.stopped_at_step = launch_.stopped_at();
      if (!outcome.stopped_at_step) outcome.signal = 0;  // it came too late to change anything
    }
    if (outcome.signal != 0) {
      outcome.exit_code = 128 + outcome.signal;
    } else if (outcome.cause.kind != Cause::Kind::none) {
      outcome.exit_code = kExitRankFailed;
    }
    return outcome;
  }

  const Launch& launch_;
  ProcessRunner& runner_;
  const Clock::time_point start_ = Clock::now();
  int64_t kills_explained_ = out_of_memory_kills();
  const std::vector<RankBinding> bindings_;
  const std::string mark_ = random_mark();
  Guardian guardian_;
  bool guarded_ = true;
  double stop_time_ = 0;        ///< unix seconds at which the ranks of this attempt got the first signal; 0: not yet
  bool reading_hangs_ = false;  ///< the disk did not answer when a rank's error was read
  Supervision supervision_;
  asio::io_context& loop_;
  LogCollector logs_;
  asio::signal_set children_, interrupts_;
  asio::steady_timer timer_;
  std::map<int, int> pids_;
  std::map<int, int> rank_of_pid_;
  std::vector<FailedAttempt> failed_attempts_;
};

}  // namespace

Outcome supervise(const Launch& launch, ProcessRunner& runner, asio::io_context& loop) {
  return Supervisor(launch, runner, loop).run();
}

}  // namespace trainctl
