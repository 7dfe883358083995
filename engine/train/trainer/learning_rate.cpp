// See the header.
#include "engine/train/trainer/learning_rate.h"

namespace trainctl {

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
