// The scalars of a step; engine/spec/schedule.h has the formulas of the learning rate.
#include "engine/train/trainer/learning_rate.h"

#include <algorithm>

namespace trainctl {

StepScalars step_scalars(const ScheduleSpec& schedule, const Optimizer& optimizer, int64_t step, int64_t epoch,
                         int64_t run_steps, int64_t skipped) {
  StepScalars scalars;
  scalars.learning_rate = static_cast<float>(learning_rate(schedule, step, run_steps));
  scalars.step = static_cast<uint32_t>(step);
  scalars.epoch = static_cast<uint32_t>(epoch);
  optimizer.fill_scalars(step + 1 - skipped, scalars);
  return scalars;
}

float AverageByRate::at(const ScheduleSpec& schedule, int64_t step, int64_t run_steps) {
  for (; next_ <= step; ++next_) {
    highest_ = std::max(highest_, learning_rate(schedule, next_, run_steps));
    weight_ = highest_ * highest_;
    sum_ += weight_;
  }
  return sum_ > 0 ? static_cast<float>(weight_ / sum_) : 1.0f;
}

}  // namespace trainctl
