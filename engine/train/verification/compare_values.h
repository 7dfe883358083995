// The distance between two runs of a job, tensor by tensor.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "engine/train/verification/certificate.h"
#include "engine/train/verification/thread_run.h"

namespace trainctl {

/// The norm of the difference relative to the norm of what is expected, and where it is largest.
struct ValueDifference {
  double largest = 0;                 ///< infinite if a value is not finite in only one of the runs
  std::string at;                     ///< "fc1.weight" or "step 3"; empty: there is no difference
  std::vector<std::string> findings;  ///< differences above the tolerance, the largest first
};

/// Relative differences of losses.
ValueDifference compare_losses(const std::vector<float>& values, const std::vector<float>& expected, double tolerance);

/// Metrics that differ by more than the relative tolerance and two of the `rows` that a step counts.
std::vector<std::string> metric_differences(const ThreadRun& run, const ThreadRun& expected, double tolerance,
                                            int64_t rows);

/// |a - b| / |b| of each tensor. A tensor whose norm is less than `floor` of that of all tensors together counts as if
/// it had that norm: rounding of larger intermediate values is all that it has.
ValueDifference compare_tensors(const TensorValues& values, const TensorValues& expected, double tolerance,
                                double floor);

/// The same for how far the weights have moved: |a - b| / |b - start|. `left_out`: tensors that are not compared, with
/// their optimizer states.
ValueDifference compare_moves(const TensorValues& values, const TensorValues& expected, const TensorValues& start,
                              double tolerance, double floor, const std::set<std::string>& left_out = {});

/// Tensors whose gradients are only rounding errors: their norms are below `floor` times that of all gradients
/// together.
std::set<std::string> rounding_alone(const TensorValues& gradients, double floor);

/// The names of tensors that differ in a bit, and "losses".
std::vector<std::string> differing_bits(const ThreadRun& a, const ThreadRun& b);

}  // namespace trainctl
