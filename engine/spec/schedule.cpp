// optimizer.learning_rate: the learning rate of each step, by the formulas in the header.
#include "engine/spec/schedule.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/text.h"

namespace trainctl {
namespace {

double cosine_between(double from, double to, double done) {
  return to + (from - to) * (1.0 + std::cos(std::numbers::pi * done)) / 2.0;
}

/// The fraction of the current period of cosine_restarts.
double fraction_of_period(const ScheduleSpec& schedule, int64_t since) {
  int64_t period = schedule.restart_steps;
  check(period > 0, "a schedule with restarts has restart_steps");
  if (schedule.restart_factor == 1) return static_cast<double>(since % period) / static_cast<double>(period);
  while (since >= period) {
    since -= period;
    period *= schedule.restart_factor;
  }
  return static_cast<double>(since) / static_cast<double>(period);
}

/// Returns the rate during the decay of a schedule. `done` is the fraction of the decay that has passed, from 0 to 1.
double decayed(const ScheduleSpec& schedule, double done) {
  if (schedule.decay_shape == "cosine") return cosine_between(schedule.base, schedule.min, done);
  const double left = schedule.decay_shape == "sqrt" ? 1.0 - std::sqrt(done) : 1.0 - done;
  return schedule.min + (schedule.base - schedule.min) * left;
}

double one_cycle(const ScheduleSpec& schedule, int64_t step, int64_t total) {
  const double first = schedule.base / schedule.div_factor, last = first / schedule.final_div_factor;
  const double top = schedule.pct_start * static_cast<double>(total) - 1, end = static_cast<double>(total) - 1;
  const auto now = static_cast<double>(std::min(step, total - 1));
  if (now <= top) return cosine_between(first, schedule.base, top > 0 ? now / top : 1.0);
  return cosine_between(schedule.base, last, end > top ? (now - top) / (end - top) : 1.0);
}

double piecewise(const ScheduleSpec& schedule, int64_t step) {
  const auto after = std::upper_bound(schedule.points.begin(), schedule.points.end(), step);
  const auto i = static_cast<size_t>(after - schedule.points.begin());
  if (i == 0) return schedule.rates.front();
  if (i == schedule.points.size()) return schedule.rates.back();
  const double from = schedule.rates[i - 1], to = schedule.rates[i];
  const double done = static_cast<double>(step - schedule.points[i - 1]) /
                      static_cast<double>(schedule.points[i] - schedule.points[i - 1]);
  return from + (to - from) * done;
}

/// Calls `use` with the segment to which a step belongs, the first step of this segment, and its length.
template <class Use>
auto with_segment(const ScheduleSpec& schedule, int64_t step, int64_t run_steps, Use use) {
  int64_t first = 0;
  size_t i = 0;
  while (i + 1 < schedule.segments.size() && step >= first + schedule.segments[i].steps)
    first += schedule.segments[i++].steps;
  const ScheduleSpec& segment = schedule.segments[i];
  return use(segment, first, segment.steps > 0 ? segment.steps : std::max<int64_t>(run_steps - first, 1));
}

}  // namespace

int64_t ScheduleSpec::end(int64_t run_steps) const {
  if (type == "segments")
    return with_segment(*this, std::numeric_limits<int64_t>::max(), run_steps,
                        [](const ScheduleSpec& last, int64_t first, int64_t length) {
                          const int64_t end_of_last = last.end(length);
                          return end_of_last > 0 ? first + end_of_last : 0;
                        });
  for (const char* ends : {"cosine", "linear", "polynomial", "wsd", "one_cycle"})
    if (type == ends) return total_steps > 0 ? total_steps : run_steps;
  return 0;
}

double learning_rate(const ScheduleSpec& schedule, int64_t step, int64_t run_steps) {
  const std::string& type = schedule.type;
  const int64_t total = schedule.end(run_steps), warmup = schedule.warmup_steps;
  if (type == "segments")
    return with_segment(schedule, step, run_steps, [&](const ScheduleSpec& segment, int64_t first, int64_t steps) {
      return learning_rate(segment, step - first, steps);
    });
  if (type == "piecewise") return piecewise(schedule, step);
  if (type == "one_cycle") return one_cycle(schedule, step, total);
  if (step < warmup) return schedule.base * static_cast<double>(step + 1) / static_cast<double>(warmup);
  if (type == "constant" || type == "plateau") return schedule.base;
  const int64_t since = step - warmup;
  if (type == "step") {
    check(schedule.step_size > 0, "a step schedule has a step_size");
    return schedule.base * std::pow(schedule.gamma, static_cast<double>(since / schedule.step_size));
  }
  if (type == "multi_step") {
    const auto passed = std::upper_bound(schedule.milestones.begin(), schedule.milestones.end(), step);
    return schedule.base * std::pow(schedule.gamma, static_cast<double>(passed - schedule.milestones.begin()));
  }
  if (type == "exponential")
    return schedule.base *
           std::pow(schedule.gamma, static_cast<double>(since) / static_cast<double>(schedule.decay_steps));
  if (type == "inverse_sqrt") {
    const int64_t timescale = schedule.timescale > 0 ? schedule.timescale : std::max<int64_t>(warmup, 1);
    return schedule.base / std::sqrt(1.0 + static_cast<double>(since) / static_cast<double>(timescale));
  }
  if (type == "cosine_restarts")
    return cosine_between(schedule.base, schedule.min, fraction_of_period(schedule, since));
  if (type == "wsd") {
    const int64_t decaying = step - (total - schedule.decay_steps);
    if (decaying <= 0) return schedule.base;
    return decayed(schedule, std::min(1.0, static_cast<double>(decaying) / static_cast<double>(schedule.decay_steps)));
  }
  const int64_t falling = total - warmup;
  const double done = falling > 0 ? std::min(1.0, static_cast<double>(since) / static_cast<double>(falling)) : 1.0;
  if (type == "linear") return schedule.base + (schedule.min - schedule.base) * done;
  if (type == "polynomial") return schedule.min + (schedule.base - schedule.min) * std::pow(1.0 - done, schedule.power);
  check(type == "cosine", "the type of a schedule must be known");
  return schedule.min + (schedule.base - schedule.min) * (1.0 + std::cos(std::numbers::pi * done)) / 2.0;
}

std::string rate_curve(const ScheduleSpec& schedule, int64_t run_steps, int columns) {
  static constexpr const char* kHeights[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  const bool is_flat = schedule.type == "constant" || schedule.is_plateau();
  if (run_steps <= 0 || (is_flat && schedule.warmup_steps == 0)) return "";
  std::vector<double> rates;
  const int64_t points = std::min<int64_t>(columns, run_steps);
  for (int64_t i = 0; i < points; ++i)
    rates.push_back(learning_rate(schedule, points == 1 ? 0 : i * (run_steps - 1) / (points - 1), run_steps));
  const double top = *std::max_element(rates.begin(), rates.end());
  std::string curve;
  for (const double rate : rates)
    curve += kHeights[top > 0 ? std::min(7, static_cast<int>(std::floor(8.0 * rate / top))) : 0];
  return curve;
}

PlateauState plateau_after(const ScheduleSpec& schedule, PlateauState state, double value) {
  constexpr double kLeastReduction = 1e-8;
  const bool low = is_better(schedule.metric, 0, 1);
  if (state.validations++ == 0) state.best = low ? HUGE_VAL : -HUGE_VAL;
  const double threshold = low ? -schedule.threshold : schedule.threshold;
  const double needed = schedule.threshold_mode == "rel" ? state.best * (1 + threshold) : state.best + threshold;
  if (low ? value < needed : value > needed) {
    state.best = value;
    state.worse = 0;
  } else {
    ++state.worse;
  }
  if (state.cooldown > 0) {
    --state.cooldown;
    state.worse = 0;
  }
  if (state.worse <= schedule.patience) return state;
  const double scale = std::max(state.scale * schedule.factor, schedule.min / schedule.base);
  if (schedule.base * (state.scale - scale) > kLeastReduction) state.scale = scale;
  state.cooldown = schedule.cooldown;
  state.worse = 0;
  return state;
}

float average_rate(const std::optional<AverageSpec>& average, int64_t update) {
  if (!average || update <= average->start + 1) return 1;
  const int64_t later = update - 1 - average->start;  // updates after the first that counts
  if (later % average->every != 0) return 0;
  const auto counted = static_cast<double>(later / average->every);
  if (average->type == "swa") return static_cast<float>(1.0 / (counted + 1));
  const double decay = average->warmup ? std::min(average->decay, (1 + counted) / (10 + counted)) : average->decay;
  return static_cast<float>(1 - decay);
}

std::string outlived_schedule(const ScheduleSpec& schedule, int64_t run_steps) {
  const int64_t end = schedule.end(run_steps);
  if (end == 0 || run_steps <= end) return "";
  const double rate = learning_rate(schedule, run_steps - 1, run_steps);
  const std::string what = rate == 0 ? "is 0" : "stays at " + to_string(Value(rate));
  return "the learning rate " + what + " after step " + std::to_string(end) +
         (schedule.segments.empty() ? " (optimizer.learning_rate.total_steps)"
                                    : " (optimizer.learning_rate.segments)") +
         ", but the run has " + std::to_string(run_steps) + " steps" +
         (rate == 0 ? "; later steps have no effect" : "");
}

}  // namespace trainctl
