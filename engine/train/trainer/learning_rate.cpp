// See the header.
#include "engine/train/trainer/learning_rate.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "engine/base/error.h"

namespace trainctl {

double learning_rate(const ScheduleSpec& schedule, int64_t step, int64_t run_steps) {
  const int64_t warmup = schedule.warmup_steps;
  if (step < warmup) return schedule.base * static_cast<double>(step + 1) / static_cast<double>(warmup);
  if (schedule.type == "constant") return schedule.base;
  const int64_t since = step - warmup;
  if (schedule.type == "step") {
    check(schedule.step_size > 0, "a step schedule has a step_size");
    return schedule.base * std::pow(schedule.gamma, static_cast<double>(since / schedule.step_size));
  }
  check(schedule.type == "cosine", "a schedule must be constant, step or cosine");
  const int64_t total = (schedule.total_steps > 0 ? schedule.total_steps : run_steps) - warmup;
  const double done = total > 0 ? std::min(1.0, static_cast<double>(since) / static_cast<double>(total)) : 1.0;
  return schedule.min + (schedule.base - schedule.min) * (1.0 + std::cos(std::numbers::pi * done)) / 2.0;
}

StepScalars step_scalars(const ScheduleSpec& schedule, const Optimizer& optimizer, int64_t step, int64_t epoch,
                         int64_t run_steps) {
  StepScalars scalars;
  scalars.learning_rate = static_cast<float>(learning_rate(schedule, step, run_steps));
  scalars.step = static_cast<uint32_t>(step);
  scalars.epoch = static_cast<uint32_t>(epoch);
  optimizer.fill_scalars(step + 1, scalars);
  return scalars;
}

}  // namespace trainctl
