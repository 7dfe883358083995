// Decides how the launcher reacts to events of its ranks.
#include "launcher/supervision.h"

#include <algorithm>
#include <csignal>
#include <tuple>

#include "engine/base/error.h"

namespace trainctl {
namespace {

/// Ranks that were asked to end but did not within grace get SIGTERM, and this long to handle it.
constexpr double kLastChanceSeconds = 2;
/// Longest time that a series of failures is observed, in settle times.
constexpr double kMostSettles = 6;
/// A waiting rank gives up by itself after the timeout, and reports more than the launcher can observe.
constexpr double kWaitingMarginSeconds = 2;
/// A longer gap between calls means that the launcher itself was delayed.
constexpr double kMostBetweenRankLooksSeconds = 1;

/// Returns whether another attempt would fail in the same way.
bool hopeless(const RankReport& report) {
  if (report.state == ProcessState::failed_to_start || report.stuck || !report.end.left.empty()) return true;
  return report.error && (report.error->kind == ErrorKind::spec || report.error->kind == ErrorKind::loss);
}

/// Decides whether to wait for more failures. A rank's report about another is followed by that rank's own failure; a
/// loss that is nan ends every rank, and each still has something to write.
bool expects_others_to_end(ErrorKind kind) { return kind == ErrorKind::comm || kind == ErrorKind::loss; }

}  // namespace

Supervision::Supervision(int num_ranks, Limits limits, Reach reach)
    : limits_(limits),
      reach_(std::move(reach)),
      reports_(static_cast<size_t>(num_ranks)),
      rejoined_(static_cast<size_t>(num_ranks)),
      motions_(static_cast<size_t>(num_ranks)) {}

void Supervision::started(int rank, double now) {
  reports_[static_cast<size_t>(rank)].state = ProcessState::running;
  motions_[static_cast<size_t>(rank)].moved = now;
}

void Supervision::failed_to_start(int rank, std::string why, double time, double now) {
  RankReport& report = reports_[static_cast<size_t>(rank)];
  report.state = ProcessState::failed_to_start;
  report.start_error = std::move(why);
  report.time = time;
  stop(now, limits_.grace_seconds);
}

void Supervision::progressed(int rank, RankProgress progress, double now) {
  Motion& motion = motions_[static_cast<size_t>(rank)];
  if (!motion.progress || motion.progress->position != progress.position) {
    motion.moved = now;
    if (phase_ == Phase::asking && progress.saving) deadline_ = std::max(deadline_, now + limits_.grace_seconds);
  }
  motion.progress = progress;
}

void Supervision::ended(int rank, RankReport report, double now) {
  RankReport& mine = reports_[static_cast<size_t>(rank)];
  check(mine.state == ProcessState::running, "a rank ends once, after it was started");
  report.silent_seconds = mine.silent_seconds;
  report.waiting = mine.waiting;
  report.frozen = mine.frozen;
  report.reports_progress = mine.reports_progress;
  report.ranks_explain = limits_.ranks_explain;
  mine = std::move(report);
  mine.state = ProcessState::ended;
  mine.asked = signalled_;
  mine.spared = is_spared(rank);
  if (!mine.failed() || mine.asked) return;
  if (!limits_.ranks_explain || (mine.error && expects_others_to_end(mine.error->kind))) return settle(now);
  stop(now, limits_.grace_seconds);
}

/// Returns whether the rank was killed and the remaining ranks can continue without it.
bool Supervision::is_spared(int rank) const {
  const RankReport& report = reports_[static_cast<size_t>(rank)];
  if (rank >= limits_.independent_ranks || phase_ != Phase::running || !report.end.signaled) return false;
  for (int other = 0; other < limits_.independent_ranks; ++other) {
    const RankReport& of = reports_[static_cast<size_t>(other)];
    if (other != rank && (of.state == ProcessState::running || of.state == ProcessState::waiting)) return true;
  }
  return false;
}

/// Waits for the failure that caused a complaint; if ranks do not explain failures, until none has failed for a while.
void Supervision::settle(double now) {
  if (phase_ == Phase::running) {
    phase_ = Phase::settling;
    settling_since_ = now;
    deadline_ = now + limits_.settle_seconds;
  } else if (phase_ == Phase::settling && !limits_.ranks_explain) {
    deadline_ = std::min(now, settling_since_ + kMostSettles * limits_.settle_seconds) + limits_.settle_seconds;
  } else {
    deadline_ = std::min(deadline_, now + limits_.settle_seconds);
  }
}

void Supervision::interrupted(int signal, double now) {
  if (interrupt_signal_ != 0) {
    kill_all(now);
    return;
  }
  const bool failed_before = stopping() && !restarts_left();
  interrupt_signal_ = signal;
  ending_signal_ = failed_before ? 0 : signal;
  if (phase_ == Phase::settling) {
    stop(now, limits_.grace_seconds);
  } else if (phase_ == Phase::running) {
    ask(signal, now);
  }
}

void Supervision::ask(int signal, double now) {
  const bool all_started = std::none_of(reports_.begin(), reports_.end(),
                                        [](const RankReport& report) { return report.state == ProcessState::waiting; });
  const bool by_signal = reach_.ask_to_stop == nullptr;
  // If some ranks were never started, the others would wait for them indefinitely.
  if (!all_started || (by_signal && signal != SIGUSR1)) {
    stop(now, limits_.grace_seconds);
    return;
  }
  phase_ = Phase::asking;
  deadline_ = now + limits_.grace_seconds;
  if (by_signal) {
    signal_running(signal);
  } else {
    reach_.ask_to_stop();
  }
}

void Supervision::advance(double now) {
  looked(now);
  if (phase_ == Phase::running) check_silence(now);
  if (now < deadline_) return;
  if (phase_ == Phase::settling) {
    stop(now, limits_.grace_seconds);
  } else if (phase_ == Phase::asking) {
    stop(now, std::min(kLastChanceSeconds, limits_.grace_seconds));
  } else if (phase_ == Phase::stopping) {
    kill_all(now);
  } else if (phase_ == Phase::killing) {
    give_up();
  }
}

/// Ends the wait for processes that SIGKILL did not end: they wait for an unresponsive disk or device, and end only
/// when it responds.
void Supervision::give_up() {
  for (size_t rank = 0; rank < reports_.size(); ++rank) {
    RankReport& report = reports_[rank];
    if (report.state != ProcessState::running) continue;
    report.state = ProcessState::ended;
    if (reach_.error_of) report.error = reach_.error_of(static_cast<int>(rank));
    report.end = {.pid = -1, .signaled = true, .code = SIGKILL};
    report.asked = report.stuck = true;
  }
}

std::vector<int> Supervision::stuck() const {
  std::vector<int> ranks;
  for (size_t rank = 0; rank < reports_.size(); ++rank) {
    if (reports_[rank].stuck) ranks.push_back(static_cast<int>(rank));
  }
  return ranks;
}

/// Time in which the launcher did not run does not count as a rank's silence: the machine or all of the run's
/// processes may have been suspended (docker pause, scontrol suspend).
void Supervision::looked(double now) {
  const double missed = now - looked_ - kMostBetweenRankLooksSeconds;
  looked_ = now;
  if (missed <= 0) return;
  for (Motion& motion : motions_) motion.moved = std::min(motion.moved + missed, now);
}

/// Chooses the rank that the others wait for, among those without progress for too long: first one whose process is
/// stopped, then one that is not waiting itself, then the one that has been silent for the longest time.
void Supervision::check_silence(double now) {
  using Key = std::tuple<bool, bool, double>;  // the rank with the largest key is the cause
  int worst = -1;
  Key worst_key;
  for (size_t i = 0; i < reports_.size(); ++i) {
    const Motion& motion = motions_[i];
    if (reports_[i].state != ProcessState::running || !motion.progress) continue;
    const double quiet = now - motion.moved;
    if (quiet < limits_.timeout_seconds) continue;
    const bool frozen = is_frozen(i);  // it cannot report anything
    const bool waiting = motion.progress->waiting;
    if (waiting && !frozen && quiet < limits_.timeout_seconds + kWaitingMarginSeconds) continue;
    const Key key{frozen, !waiting, quiet};
    if (worst < 0 || key > worst_key) {
      worst = static_cast<int>(i);
      worst_key = key;
    }
  }
  if (worst < 0) return;
  if (worst < limits_.independent_ranks) return kill_alone(worst, now);
  reports_[static_cast<size_t>(worst)].silent_seconds = std::get<double>(worst_key);
  stop(now, limits_.grace_seconds);
}

/// Kills only this rank. Waiting ranks may have waited for it and not have progressed at the next call, so their
/// silence counts from now.
void Supervision::kill_alone(int rank, double now) {
  for (size_t i = 0; i < motions_.size(); ++i) {
    Motion& motion = motions_[i];
    const bool waits = motion.progress && motion.progress->waiting && !is_frozen(i);
    if (waits || static_cast<int>(i) == rank) motion.moved = now;
  }
  reach_.signal_rank(rank, SIGKILL);
}

bool Supervision::is_frozen(size_t rank) const { return reach_.is_frozen && reach_.is_frozen(static_cast<int>(rank)); }

bool Supervision::done() const {
  return std::none_of(reports_.begin(), reports_.end(), [&](const RankReport& report) {
    return report.state == ProcessState::running || (report.state == ProcessState::waiting && !stopping());
  });
}

bool Supervision::restarts_left() const {
  return attempt_ < limits_.max_restarts && interrupt_signal_ == 0 &&
         std::none_of(reports_.begin(), reports_.end(), [&](const RankReport& report) {
           const bool is_lost = !report.host_lost.empty() || report.lost_link.has_value();
           return hopeless(report) || (limits_.lost_host_ends && is_lost);
         });
}

bool Supervision::restart_due() const { return stopping() && done() && restarts_left(); }

void Supervision::restart() {
  check(restart_due(), "ranks restart when all have ended and restarts are left");
  ++attempt_;
  reports_.assign(reports_.size(), {});
  motions_.assign(motions_.size(), {});
  phase_ = Phase::running;
  deadline_ = kNever;
  signalled_ = false;
}

bool Supervision::rejoin(int rank) {
  RankReport& report = reports_[static_cast<size_t>(rank)];
  int& times = rejoined_[static_cast<size_t>(rank)];
  if (!report.spared || phase_ != Phase::running || times == limits_.max_restarts) return false;
  ++times;
  report = {};
  motions_[static_cast<size_t>(rank)] = {};
  return true;
}

/// `patience`: seconds until ranks that still run are killed.
void Supervision::stop(double now, double patience) {
  if (phase_ == Phase::stopping || phase_ == Phase::killing) return;
  // The deadline of an earlier request to stop still applies.
  const double latest = phase_ == Phase::asking ? deadline_ + kLastChanceSeconds : kNever;
  note_states();
  phase_ = Phase::stopping;
  deadline_ = std::min(now + patience, std::max(latest, now));
  signal_running(SIGTERM);
  signal_running(SIGCONT);  // a stopped process would not handle the signal
}

void Supervision::kill_all(double now) {
  if (phase_ != Phase::killing) deadline_ = now + limits_.kill_seconds;
  phase_ = Phase::killing;
  signal_running(SIGKILL);
}

void Supervision::note_states() {
  for (size_t i = 0; i < reports_.size(); ++i) {
    RankReport& report = reports_[i];
    if (report.state != ProcessState::running) continue;
    report.reports_progress = motions_[i].progress.has_value();
    report.waiting = report.reports_progress && motions_[i].progress->waiting;
    report.frozen = is_frozen(i);
  }
}

void Supervision::signal_running(int signal) {
  signalled_ = true;
  for (size_t rank = 0; rank < reports_.size(); ++rank) {
    if (reports_[rank].state == ProcessState::running) reach_.signal_rank(static_cast<int>(rank), signal);
  }
}

}  // namespace trainctl
