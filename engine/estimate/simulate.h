// Predicts how long a step takes by executing the programs that will run on a simulated clock of the machine.
//
// One rank of each class is simulated. An instruction begins when its stream has reached it, the instructions that it
// waits for have ended and, if it is a collective or a recv, its peers have arrived. Instructions begin in the order of
// their times. The result therefore includes everything that the compiler did: overlap, shared launches, pipeline
// bubbles, ranks that wait for others.
#pragma once

#include <array>
#include <vector>

#include "engine/compile/rank_classes.h"
#include "engine/estimate/step_parts.h"
#include "engine/machine/machine.h"

namespace trainctl {

/// Tells when an instruction runs, counted from the start of the step.
struct SimulatedSpan {
  Seconds ready;  ///< its stream has reached it, and the instructions that it waits for have ended
  Seconds begin;  ///< its peers have arrived too
  Seconds end;
};

struct Simulation {
  /// False: ranks wait for each other, so no rank reaches its end, and the other fields are empty. Verified programs
  /// always end.
  bool ends = true;
  Seconds step;
  /// The longest chain of instructions, each of which begins when the one before it ends. The parts add up to the step.
  std::array<Seconds, kParts> parts = {};
  /// The standard deviation of `step` that follows from the errors of the kernels' times: equal kernels have the same
  /// error, different ones independent errors, and the error of the machine's step cost is the same for all.
  Seconds deviation;
  std::vector<std::vector<SimulatedSpan>> spans;  ///< by class and instruction
};

/// The inputs of the step-cost model for one rank: the number of kernels, and the sum of their times when each runs
/// alone.
StepSample step_alone(const Program& program, const Machine& machine);

/// Simulates a step. With `with_deviation`, Simulation::deviation includes the errors of kernel times, which takes long
/// to compute; without it, only the error of the machine's step cost.
Simulation simulate(const RankClasses& classes, const Machine& machine, bool with_deviation = true);

}  // namespace trainctl
