// The launcher's decisions.
#include "launcher/supervision.h"

#include <algorithm>
#include <csignal>

#include "engine/base/error.h"

namespace trainctl {

Supervision::Supervision(int num_ranks, Limits limits, SignalRank signal_rank)
    : limits_(limits), signal_rank_(std::move(signal_rank)), reports_(static_cast<size_t>(num_ranks)) {}

void Supervision::started(int rank) { reports_[static_cast<size_t>(rank)].state = ProcessState::running; }

void Supervision::failed_to_start(int rank, std::string why, double time, double now) {
  RankReport& report = reports_[static_cast<size_t>(rank)];
  report.state = ProcessState::failed_to_start;
  report.start_error = std::move(why);
  report.time = time;
  stop(now);
}

void Supervision::ended(int rank, RankReport report, double now) {
  RankReport& mine = reports_[static_cast<size_t>(rank)];
  check(mine.state == ProcessState::running, "a rank ends once, after it was started");
  mine = std::move(report);
  mine.state = ProcessState::ended;
  mine.asked = phase_ == Phase::stopping || phase_ == Phase::killing;
  if (!mine.failed() || mine.asked) return;
  if (mine.error && mine.error->kind == ErrorKind::comm) {
    if (phase_ == Phase::running) {
      phase_ = Phase::settling;
      deadline_ = now + limits_.settle_seconds;
    }
    return;
  }
  stop(now);
}

void Supervision::interrupted(int signal, double now) {
  const bool second = interrupt_signal_ != 0;
  if (!second) interrupt_signal_ = signal;
  if (second) {
    kill_all();
  } else {
    stop(now);
  }
}

void Supervision::advance(double now) {
  if (now < deadline_) return;
  if (phase_ == Phase::settling) {
    stop(now);
  } else if (phase_ == Phase::stopping) {
    kill_all();
  }
}

bool Supervision::done() const {
  return std::none_of(reports_.begin(), reports_.end(), [&](const RankReport& report) {
    return report.state == ProcessState::running || (report.state == ProcessState::waiting && !stopping());
  });
}

void Supervision::stop(double now) {
  if (phase_ == Phase::stopping || phase_ == Phase::killing) return;
  phase_ = Phase::stopping;
  deadline_ = now + limits_.grace_seconds;
  signal_running(SIGTERM);
  signal_running(SIGCONT);  // a stopped process would not see it
}

void Supervision::kill_all() {
  phase_ = Phase::killing;
  deadline_ = kNever;
  signal_running(SIGKILL);
}

void Supervision::signal_running(int signal) {
  for (size_t rank = 0; rank < reports_.size(); ++rank) {
    if (reports_[rank].state == ProcessState::running) signal_rank_(static_cast<int>(rank), signal);
  }
}

}  // namespace trainctl
