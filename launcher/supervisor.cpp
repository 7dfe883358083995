// The event loop around Supervision.
#include "launcher/supervisor.h"

#include <algorithm>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <memory>
#include <optional>

#include "engine/base/error.h"
#include "launcher/failure_report.h"
#include "launcher/local_ranks.h"
#include "launcher/signals.h"

namespace trainctl {
namespace {

namespace asio = boost::asio;
using Clock = std::chrono::steady_clock;

constexpr auto kSupervisorTick = std::chrono::milliseconds(25);
constexpr int kPollsAStart = 16;

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
  Supervisor(const Launch& launch, RankRunner& ranks, asio::io_context& loop)
      : launch_(launch),
        ranks_(ranks),
        supervision_(launch.cluster.num_ranks(), launch.limits, reach()),
        loop_(loop),
        interrupts_(loop_),
        timer_(loop_) {
    for (const int number : heeded({SIGINT, SIGTERM, SIGHUP, SIGUSR1})) interrupts_.add(number);
    unblock_interrupts();
    std::signal(SIGPIPE, SIG_IGN);  // The process keeps running when the reader of its output goes away.
    std::signal(SIGXFSZ, SIG_IGN);  // A file that reaches `ulimit -f` is then a failed write with EFBIG, not the end of
                                    // the process.
  }

  Outcome run() {
    ranks_.listen(events());
    await_interrupt();
    if (launch_.spot.notices != SpotNotices::none)
      spot_watch_.emplace(
          loop_, launch_.spot, [this](const std::string& announced) { reclaimed(announced); },
          [this](const std::string& message) { notice(message); });
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
    reach.signal_rank = [this](int rank, int signal) { ranks_.signal(rank, signal); };
    if (launch_.stops_after_step) reach.ask_to_stop = [this] { ranks_.stop_after_step(); };
    reach.is_frozen = [this](int rank) { return ranks_.is_frozen(rank); };
    reach.error_of = [this](int rank) { return ranks_.error_of(rank); };
    return reach;
  }

  RankRunner::Events events() {
    return {.started = [this](int rank) { supervision_.started(rank, now()); },
            .failed_to_start =
                [this](int rank, std::string why) {
                  supervision_.failed_to_start(rank, std::move(why), wall_seconds(), now());
                },
            .ended = [this](int rank, RankReport report) { rank_ended(rank, std::move(report)); },
            .notice = [this](const std::string& message) { notice(message); }};
  }

  void rank_ended(int rank, RankReport report) {
    const std::string how = describe(report.end) + at_position(report.doing);
    supervision_.ended(rank, std::move(report), now());
    if (!supervision_.reports()[static_cast<size_t>(rank)].spared) return;
    const bool rejoins = supervision_.rejoin(rank);
    notice(launch_.cluster.names.name(rank) + " " + how + "; the other workers continue" +
           (rejoins ? ", and a replacement is started" : ""));
    if (!rejoins) return;
    launch_.program.rejoins(rank);
    ranks_.start(launch_.cluster.places[static_cast<size_t>(rank)], supervision_.attempt());
  }

  void start_all() {
    for (const RankPlace& place : launch_.cluster.places) {
      if (!supervision_.may_start()) break;
      ranks_.start(place, supervision_.attempt());
      // Handles Ctrl-C and early deaths while other ranks still start. poll() would not return while a rank floods the
      // launcher with output.
      for (int i = 0; i < kPollsAStart && loop_.poll_one() > 0; ++i) {
      }
    }
  }

  void restart() {
    const Cause cause = find_first_cause(supervision_.reports());
    const std::string message = cause_line(supervision_.reports(), cause, launch_.cluster);
    failed_attempts_.push_back({cause, message, now()});
    supervision_.restart();
    notice(message + "; restarting all ranks (" + std::to_string(supervision_.attempt()) + " of " +
           std::to_string(launch_.limits.max_restarts) + ")");
    launch_.observer.on_restart(supervision_.attempt());
    ranks_.restart(supervision_.attempt());
    start_all();
  }

  void await_interrupt() {
    interrupts_.async_wait([this, alive = std::weak_ptr(alive_)](const boost::system::error_code& error, int signal) {
      if (error || alive.expired()) return;
      await_interrupt();
      if (signal == SIGUSR1 && launch_.program.save_now()) return;
      const bool first = supervision_.interrupt_signal() == 0;
      supervision_.interrupted(signal, now());
      notice(signal_name(signal) + (first ? first_answer() : " again: killed the ranks"));
    });
  }

  void reclaimed(const std::string& announced) {
    if (supervision_.interrupt_signal() != 0) return;
    spot_notice_ = announced;
    supervision_.interrupted(SIGTERM, now());
    notice(std::string(to_string(launch_.spot.notices)) + " will reclaim this host (" + announced + ")" +
           first_answer());
  }

  std::string first_answer() const {
    if (!supervision_.asking()) return ": asked the ranks to stop; a second signal kills them";
    char grace[32];
    std::snprintf(grace, sizeof grace, "%g s", launch_.limits.grace_seconds);
    const std::string what = launch_.stops_after_step ? ": the ranks stop after this step" : ": passed on to the ranks";
    return what + ", or are terminated after " + grace + "; a second signal kills them";
  }

  void look_at_progress() {
    for (const RankPlace& place : launch_.cluster.places) {
      if (supervision_.reports()[static_cast<size_t>(place.rank)].state != ProcessState::running) continue;
      std::optional<RankProgress> progress = launch_.program.progress(place.rank);
      if (!progress) continue;
      // Nothing is known about a rank whose host is disconnected, so it does not count as stalled.
      if (!ranks_.is_heard(place.rank)) progress->position ^= ++unheard_;
      supervision_.progressed(place.rank, *progress, now());
    }
  }

  void tick() {
    ranks_.look();
    look_at_progress();
    supervision_.advance(now());
    launch_.observer.on_tick();
    timer_.expires_after(kSupervisorTick);
    timer_.async_wait([this, alive = std::weak_ptr(alive_)](const boost::system::error_code& error) {
      if (!error && !alive.expired()) tick();
    });
  }

  void notice(const std::string& message) { launch_.observer.on_notice(message); }

  Outcome end() {
    for (const int rank : supervision_.stuck()) {
      notice(launch_.cluster.names.name(rank) +
             " did not end after SIGKILL: it is waiting for a disk or device that does not respond");
    }
    ranks_.end();
    return outcome();
  }

  Outcome outcome() const {
    Outcome outcome;
    outcome.disk_hangs = ranks_.disk_hangs();
    outcome.signal = supervision_.ending_signal();
    outcome.seconds = now();
    outcome.reports = supervision_.reports();
    outcome.cause = find_first_cause(outcome.reports);
    outcome.failed_attempts = failed_attempts_;
    if (outcome.signal != 0 && launch_.stops_after_step && all_ended_well(outcome.reports)) {
      outcome.stopped_at_step = launch_.program.stopped_at();
      if (!outcome.stopped_at_step) outcome.signal = 0;  // the signal came too late to have an effect
    }
    if (outcome.signal != 0) {
      outcome.exit_code = spot_notice_.empty() ? 128 + outcome.signal : kExitRequeue;
      outcome.spot_notice = spot_notice_;
    } else if (outcome.cause.kind != Cause::Kind::none) {
      outcome.exit_code = kExitRankFailed;
    }
    return outcome;
  }

  const Launch& launch_;
  RankRunner& ranks_;
  const Clock::time_point start_ = Clock::now();
  Supervision supervision_;
  asio::io_context& loop_;
  asio::signal_set interrupts_;
  asio::steady_timer timer_;
  /// Expires with this object. Cancellation does not reach handlers that are already in the loop's queue.
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::vector<FailedAttempt> failed_attempts_;
  std::optional<SpotWatch> spot_watch_;
  std::string spot_notice_;
  uint64_t unheard_ = 0;  ///< number of looks at ranks whose hosts were disconnected
};

}  // namespace

Outcome supervise(const Launch& launch, RankRunner& ranks, asio::io_context& loop) {
  return Supervisor(launch, ranks, loop).run();
}

Outcome supervise(const Launch& launch, ProcessRunner& runner, asio::io_context& loop) {
  LocalRanks ranks(launch, runner, loop);
  return supervise(launch, ranks, loop);
}

}  // namespace trainctl
