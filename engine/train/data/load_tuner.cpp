// Chooses the number of workers and of batches to read ahead, from measurements of the trainer and the workers.
#include "engine/train/data/load_tuner.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace trainctl {
namespace {

constexpr double kWaits = 0.02;             ///< share of a step; a trainer that waits less counts as not waiting
constexpr double kMostlyWaits = 0.5;        ///< share of a step above which a short window suffices for a decision
constexpr double kLeastWait = 100e-6;       ///< seconds per step; a shorter wait is only the handover of a batch
constexpr double kBusy = 0.8, kIdle = 0.5;  ///< shares of the workers' time: busy from kBusy on, idle below kIdle
constexpr double kGain = 0.97;              ///< an increase must shorten the step to this fraction, or it is undone
constexpr double kSameLoad = 0.8;           ///< a load above this share of least_load_ needs least_workers_ again
constexpr int kCalmWindows = 4;             ///< consecutive windows without waiting before workers are removed

/// ", 81 % of it with decode": the stage on which the workers spend most of their busy time.
std::string mostly(const StageSeconds& stages) {
  if (!(stages.sum() > 0)) return "";
  const ReadStage slowest = stages.slowest();
  return fmt::format(", {} % of it with {}", static_cast<int>(std::lround(100 * stages[slowest] / stages.sum())),
                     to_string(slowest));
}

int percent(double share) { return static_cast<int>(std::lround(100 * share)); }

}  // namespace

std::string to_string(const LoadSetting& setting) {
  return fmt::format("{} worker{}, {} batch{} ahead", setting.workers, setting.workers == 1 ? "" : "s", setting.ahead,
                     setting.ahead == 1 ? "" : "es");
}

std::optional<LoadTuner::Change> LoadTuner::after_step(double seconds, double waited, double busy,
                                                       const StageSeconds& stages) {
  seconds_ += seconds;
  waited_ += waited;
  busy_ += busy;
  stages_.add(stages);
  const bool is_plain = steps_ + 1 >= kShortWindow && waited_ > kMostlyWaits * seconds_;
  if (++steps_ < kWindow && !is_plain) return {};
  const double step = seconds_ / steps_, wait_share = seconds_ > 0 ? waited_ / seconds_ : 0;
  const double load = busy_ / steps_;
  const bool too_short = waited_ / steps_ < kLeastWait;
  const StageSeconds spent = std::exchange(stages_, {});
  steps_ = 0;
  seconds_ = waited_ = busy_ = 0;
  if (is_settling_) {
    is_settling_ = false;
    return {};
  }
  return decide(step, too_short ? 0 : wait_share, load, spent);
}

std::optional<LoadTuner::Change> LoadTuner::decide(double step_seconds, double wait_share, double load,
                                                   const StageSeconds& stages) {
  const double busy_share = load / (step_seconds * setting_.workers);
  if (before_ && wait_share > kWaits && step_seconds > kGain * step_before_) {
    (before_->workers < setting_.workers ? workers_help_ : ahead_helps_) = false;
    const LoadSetting back = *before_;
    before_.reset();
    return go_to(back, "more of them did not shorten the step");
  }
  // After an increase that helped, one that did not help before is worth another try. This ends, because each increase
  // that is kept shortens the step.
  if (before_) (before_->workers < setting_.workers ? ahead_helps_ : workers_help_) = true;
  before_.reset();
  if (wait_share > kWaits) {
    calm_windows_ = 0;
    least_workers_ = std::min(setting_.workers + 1, limits_.most_workers);
    least_load_ = load;
    const bool busy = busy_share >= kBusy;
    LoadSetting to = setting_;
    if (busy && workers_help_) to.workers = std::min(2 * setting_.workers, limits_.most_workers);
    if (to == setting_ && ahead_helps_) to.ahead = std::min(2 * setting_.ahead, limits_.most_ahead);
    if (to == setting_ && workers_help_) to.workers = std::min(2 * setting_.workers, limits_.most_workers);
    if (to == setting_) return {};
    before_ = setting_;
    step_before_ = step_seconds;
    return go_to(to, fmt::format("the trainer waits {} % of a step, and the workers are busy {} % of the time{}",
                                 percent(wait_share), percent(busy_share), mostly(stages)));
  }
  calm_windows_ = busy_share < kIdle ? calm_windows_ + 1 : 0;
  if (calm_windows_ < kCalmWindows) return {};
  calm_windows_ = 0;
  // Keep as many workers as would be busy three quarters of the time.
  const int least = load > kSameLoad * least_load_ ? least_workers_ : limits_.least_workers;
  const int enough = std::max(least, static_cast<int>(std::ceil(setting_.workers * busy_share / 0.75)));
  if (enough >= setting_.workers) return {};
  workers_help_ = ahead_helps_ = true;
  return go_to({enough, setting_.ahead},
               fmt::format("the workers are busy only {} % of the time, and the trainer does not wait for them",
                           percent(busy_share)));
}

LoadTuner::Change LoadTuner::go_to(LoadSetting to, std::string reason) {
  setting_ = to;
  is_settling_ = true;
  return {to, std::move(reason)};
}

}  // namespace trainctl
