// Kernel times within a step, which differ from those of kernels that run alone: operands are in other caches, the
// device runs at the clocks of a long load, and data differ.
#pragma once

#include <string>
#include <vector>

#include "cli/measure/step_bench.h"
#include "engine/compile/program.h"
#include "engine/machine/machine.h"

namespace trainctl {

/// A step of one rank that was run.
struct RunStep {
  std::string job;
  Program program;
  MeasuredStep measured;
};

/// Sets KernelSample::in_step of all samples, and Machine::steps. A launch whose kernels take 20 us or more alone takes
/// in a step what it took in those that were run, less what it costs to time it there; calls of other sizes take by as
/// much more as the nearest call of their key that was run. Shorter ones keep their time, as timing would not show what
/// they take: StepCost has what they are off together.
void calibrate_steps(const std::vector<RunStep>& steps, Machine& machine);

}  // namespace trainctl
