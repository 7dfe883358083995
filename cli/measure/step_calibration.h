// Kernel times within a step. They differ from those of kernels that run alone: operands are in other caches, the
// device runs at the clocks of a sustained load, and data differ.
#pragma once

#include <string>
#include <vector>

#include "cli/measure/step_bench.h"
#include "engine/compile/program.h"
#include "engine/machine/machine.h"

namespace trainctl {

/// A measured step of one rank.
struct RunStep {
  std::string job;
  Program program;
  MeasuredStep measured;
};

/// Sets KernelSample::in_step of all samples, and Machine::steps. A launch whose separate kernels take 20 us or more
/// gets its time measured in steps, less the cost of timing it; calls of other sizes get the correction of the nearest
/// measured call with the same key. Shorter kernels keep their time, since timing would not show it accurately;
/// StepCost has their total deviation.
void calibrate_steps(const std::vector<RunStep>& steps, Machine& machine);

}  // namespace trainctl
