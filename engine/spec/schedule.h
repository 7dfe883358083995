// optimizer.learning_rate: the rate of a step (t, from 0 over the whole run; w = warmup_steps, s = t - w, n =
// total_steps or the steps of the run, d = (s / (n - w)) limited to 1).
//
//   t < w            base (t + 1) / w
//   constant         base
//   step             base gamma ^ floor(s / step_size)
//   multi_step       base gamma ^ (how many milestones are at most t)
//   exponential      base gamma ^ (s / decay_steps)
//   cosine           min + (base - min) (1 + cos(pi d)) / 2
//   cosine_restarts  the same, with d the fraction of the current period: restart_steps, then restart_factor times as
//                    long as the period before
//   linear           base + (min - base) d
//   polynomial       min + (base - min) (1 - d) ^ power
//   inverse_sqrt     base / sqrt(1 + s / timescale)
//   wsd              base until n - decay_steps, then down to min (warmup, stable, decay)
//   one_cycle        as torch.optim.lr_scheduler.OneCycleLR with base as max_lr: cosines from base / div_factor up to
//                    base at pct_start of n, then down to base / div_factor / final_div_factor
//   plateau          base, times the scale that follows from the validations (plateau_after)
//   segments         each segment as a schedule of its own, whose first step is t = 0 and whose steps are n
//   piecewise        linear between (points[i], rates[i]), constant before the first and after the last
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "engine/base/plateau_state.h"
#include "engine/spec/job_spec.h"

namespace trainctl {

/// Returns the learning rate of a step. `run_steps`, the number of steps of the run, replaces a total_steps of 0.
/// Allocates no memory.
double learning_rate(const ScheduleSpec& schedule, int64_t step, int64_t run_steps);

/// The rates of a run as `columns` characters of eight heights; "" for a constant rate.
std::string rate_curve(const ScheduleSpec& schedule, int64_t run_steps, int columns);

/// Returns the share of the current weights in their average after update number `update` (from 1): the average becomes
/// average + rate (weights - average). The rate is 1 up to the first update that counts, and 0 after an update that
/// does not count. Without an average it is 1.
///
///   ema   1 - decay, as AveragedModel in PyTorch; with warmup at least 1 - (1 + t) / (10 + t), t = updates after start
///   swa   1 / n for the n-th that counts: the mean of them all
float average_rate(const std::optional<AverageSpec>& average, int64_t update);

/// Returns the state of the schedule plateau after a validation whose metric is `value`, as ReduceLROnPlateau in
/// PyTorch. A loss should fall; all other metrics should rise.
PlateauState plateau_after(const ScheduleSpec& schedule, PlateauState state, double value);

/// "the learning rate stays at 0.001 after step 100 (optimizer.learning_rate.total_steps), but the run has 200 steps";
/// "" if the schedule does not end before the run.
std::string outlived_schedule(const ScheduleSpec& schedule, int64_t run_steps);

}  // namespace trainctl
