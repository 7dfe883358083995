// The event loop around Supervision.
#include "launcher/supervisor.h"

#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>

#include "engine/base/error.h"
#include "launcher/guardian.h"
#include "launcher/log_pipe.h"
#include "launcher/out_of_memory.h"

namespace trainctl {
namespace {

namespace asio = boost::asio;
using Clock = std::chrono::steady_clock;

constexpr auto kTick = std::chrono::milliseconds(25);
/// When a visit moved this much, the next one comes at once.
constexpr int64_t kBusyBytes = 1 << 16;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

class Supervisor {
 public:
  Supervisor(const Launch& launch, ProcessRunner& runner, asio::io_context& loop)
      : launch_(launch),
        runner_(runner),
        guardian_(launch.cluster.num_ranks()),
        supervision_(launch.cluster.num_ranks(), launch.limits, [this](int rank, int signal) { send(rank, signal); }),
        loop_(loop),
        children_(loop_, SIGCHLD),
        interrupts_(loop_, SIGINT, SIGTERM, SIGHUP),
        timer_(loop_) {
    std::signal(SIGPIPE, SIG_IGN);  // a reader of our output that went away is no reason to stop
  }

  Outcome run() {
    await_child();
    await_interrupt();
    start_all();
    tick();
    while (!finished_ && loop_.run_one() > 0) {
    }
    return outcome();
  }

 private:
  struct Rank {
    int pid = -1;
    std::unique_ptr<LogPipe> out, err;
    bool disk_reported = false;
  };

  double now() const { return seconds_since(start_); }

  void start_all() {
    const int cores = usable_cores();
    for (const RankPlace& place : launch_.cluster.places) {
      if (supervision_.stopping()) break;
      start_rank(place, cores);
      loop_.poll();  // Ctrl-C and early deaths while we are still starting others
    }
    finish_if_done();
  }

  void start_rank(const RankPlace& place, int cores) {
    Rank& rank = ranks_[place.rank];
    try {
      open_logs(rank, place.rank);
      ProcessCommand command = launch_.command(place);
      command.stdout_fd = rank.out->write_end();
      command.stderr_fd = rank.err->write_end();
      if (std::getenv("OMP_NUM_THREADS") == nullptr) {
        const int threads = threads_per_rank(cores, place.local_ranks);
        command.environment.emplace_back("OMP_NUM_THREADS", std::to_string(threads));
      }
      rank.pid = runner_.start(command);
    } catch (const EnvError& error) {
      supervision_.failed_to_start(place.rank, error.what(), wall_seconds(), now());
      return;
    }
    guardian_.watch(rank.pid);
    rank_of_pid_[rank.pid] = place.rank;
    rank.out->close_write_end();
    rank.err->close_write_end();
    supervision_.started(place.rank);
  }

  void open_logs(Rank& rank, int number) {
    LogPipe::OnLine on_line;
    if (launch_.on_line) on_line = [this, number](std::string_view line) { launch_.on_line(number, line); };
    rank.out = std::make_unique<LogPipe>(launch_.directory.rank_file(number, "stdout"), on_line);
    rank.err = std::make_unique<LogPipe>(launch_.directory.rank_file(number, "stderr"));
  }

  void send(int rank, int signal) { runner_.signal_group(ranks_.at(rank).pid, signal); }

  void await_child() {
    children_.async_wait([this](const boost::system::error_code& error, int) {
      if (error) return;
      reap();
      await_child();
    });
  }

  void await_interrupt() {
    interrupts_.async_wait([this](const boost::system::error_code& error, int signal) {
      if (error) return;
      const bool first = supervision_.interrupt_signal() == 0;
      supervision_.interrupted(signal, now());
      if (first) {
        notice(signal_name(signal) + ": asked the ranks to stop; a second one kills them");
      } else {
        notice(signal_name(signal) + " again: killed the ranks");
      }
      finish_if_done();
      await_interrupt();
    });
  }

  void reap() {
    for (const ProcessEnd& end : runner_.reap()) {
      const auto found = rank_of_pid_.find(end.pid);
      if (found == rank_of_pid_.end()) continue;
      rank_ended(found->second, end);
    }
    finish_if_done();
  }

  void rank_ended(int number, const ProcessEnd& end) {
    Rank& rank = ranks_.at(number);
    guardian_.forget(end.pid);
    rank.out->finish();
    rank.err->finish();
    report_full_disk(rank, number);
    RankReport report;
    report.state = ProcessState::ended;
    report.end = end;
    report.error = read_rank_error(launch_.directory.rank_path(number));
    report.time = wall_seconds();
    report.out_of_memory = end.signaled && end.code == SIGKILL && out_of_memory_kills() > kills_before_;
    if (launch_.doing) report.doing = launch_.doing(number);
    if (launch_.on_rank_ended) launch_.on_rank_ended(number, report.failed());
    supervision_.ended(number, std::move(report), now());
  }

  void tick() {
    int64_t moved = 0;
    for (auto& [number, rank] : ranks_) {
      if (rank.out) moved += rank.out->drain();
      if (rank.err) moved += rank.err->drain();
      report_full_disk(rank, number);
    }
    supervision_.advance(now());
    if (launch_.on_tick) launch_.on_tick();
    timer_.expires_after(moved >= kBusyBytes ? std::chrono::milliseconds(0) : kTick);
    timer_.async_wait([this](const boost::system::error_code& error) {
      if (!error) tick();
    });
  }

  void report_full_disk(Rank& rank, int number) {
    for (const auto* pipe : {rank.out.get(), rank.err.get()}) {
      if (rank.disk_reported || pipe == nullptr || pipe->write_error() == 0) continue;
      rank.disk_reported = true;
      notice("cannot write the log of rank " + std::to_string(number) + ": " + std::strerror(pipe->write_error()) +
             "; the training goes on without it");
    }
  }

  void notice(const std::string& message) {
    if (launch_.on_notice) launch_.on_notice(message);
  }

  void finish_if_done() { finished_ = finished_ || supervision_.done(); }

  Outcome outcome() const {
    Outcome outcome;
    outcome.signal = supervision_.interrupt_signal();
    outcome.seconds = now();
    outcome.reports = supervision_.reports();
    outcome.cause = find_first_cause(outcome.reports);
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
  const int64_t kills_before_ = out_of_memory_kills();
  Guardian guardian_;
  Supervision supervision_;
  asio::io_context& loop_;
  asio::signal_set children_, interrupts_;
  asio::steady_timer timer_;
  std::map<int, Rank> ranks_;
  std::map<int, int> rank_of_pid_;
  bool finished_ = false;
};

}  // namespace

Outcome supervise(const Launch& launch, ProcessRunner& runner, asio::io_context& loop) {
  return Supervisor(launch, runner, loop).run();
}

}  // namespace trainctl
