// Checks that two runs of a job agree, and that a run agrees with its plan's report.
#pragma once

#include <vector>

#include "tests/equivalence/harness.h"

namespace trainctl {

/// Compares the losses. The jobs of the table train 100 steps; throws if a run has another number of steps.
void check_losses(const RunResult& run, const RunResult& reference, double tolerance, size_t steps = 100);
/// Weights are compared relative to the largest element: the relative error of small ones is larger.
void check_weights(const RunResult& run, const RunResult& reference, double tolerance);
/// Checks that the communications that ran are those of the plan's report.
void check_communications(const RunResult& run);
bool same_bits(const std::vector<float>& a, const std::vector<float>& b);

}  // namespace trainctl
