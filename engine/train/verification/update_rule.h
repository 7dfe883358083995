// Recomputes the first updates of a one-rank run from their gradients, in double precision and from the formulas of
// PyTorch's documentation: a kernel of an optimizer that is wrong on every rank is wrong on one rank too.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/graph/graph.h"
#include "engine/runtime/executor.h"
#include "engine/spec/job_spec.h"
#include "engine/train/verification/compare_values.h"
#include "engine/train/verification/thread_run.h"

namespace trainctl {

/// Number of updates that are recomputed: the second one reads the states that the first one has left.
inline constexpr int64_t kRecomputedUpdates = 2;

/// The weights before each update and after the last one, and the gradients that it read.
class UpdateWitness {
 public:
  /// Call before each step and after the last one, on the only rank.
  void look(const Program& program, int64_t step, Executor& executor);
  bool is_complete() const;

  /// The largest difference of a tensor's move in all updates from the formula, relative to the move and without what
  /// rounding to f32 explains.
  ValueDifference compare(const Graph& graph, const OptimizerSpec& optimizer, double tolerance) const;

 private:
  std::vector<TensorValues> weights_, gradients_;  ///< by step
};

/// Gradients whose norms, tensor by tensor, are at most `limit` (optimizer.clip_parameter_norm).
TensorValues limited_norms(TensorValues gradients, double limit);

/// Tells why the updates of this job are not recomputed; empty: they are.
std::string why_not_recomputed(const OptimizerSpec& optimizer);

}  // namespace trainctl
