// optimizer.learning_rate: the rate of a step (t, from 0 over the whole run; w = warmup_steps).
//
//   t < w      base * (t + 1) / w
//   constant   base
//   step       base * gamma ^ floor((t - w) / step_size)
//   cosine     min + (base - min) * (1 + cos(pi * (t - w) / (total_steps - w))) / 2, min from total_steps on
#pragma once

#include <cstdint>

#include "engine/ops/kernel.h"
#include "engine/ops/optimizer_def.h"
#include "engine/spec/job_spec.h"

namespace trainctl {

/// `run_steps` replaces a total_steps of 0.
double learning_rate(const ScheduleSpec& schedule, int64_t step, int64_t run_steps);

/// All scalars that change from step to step; `epoch` from 0. Allocates nothing.
StepScalars step_scalars(const ScheduleSpec& schedule, const Optimizer& optimizer, int64_t step, int64_t epoch,
                         int64_t run_steps);

}  // namespace trainctl
