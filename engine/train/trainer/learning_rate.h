// The scalars of a step; engine/spec/schedule.h has the formulas of the learning rate.
#pragma once

#include <cstdint>

#include "engine/ops/kernel.h"
#include "engine/ops/optimizer_def.h"
#include "engine/spec/schedule.h"

namespace trainctl {

/// All scalars that change from step to step; `epoch` from 0. `skipped`: earlier steps that do not count as updates.
/// Allocates nothing.
StepScalars step_scalars(const ScheduleSpec& schedule, const Optimizer& optimizer, int64_t step, int64_t epoch,
                         int64_t run_steps, int64_t skipped = 0);

/// StepScalars::average_rate of optimizers with OptimizerDef::averages_by_rate.
class AverageByRate {
 public:
  /// Steps must not descend.
  float at(const ScheduleSpec& schedule, int64_t step, int64_t run_steps);

 private:
  int64_t next_ = 0;
  double highest_ = 0, weight_ = 0, sum_ = 0;
};

}  // namespace trainctl
