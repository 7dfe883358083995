// Compares the gradients of a job with its loss: along a direction d in the space of the weights, the loss changes by
// (L(w + h d) - L(w - h d)) / 2h, which must be the product of the gradient and d. This needs no second implementation:
// a kernel whose result is wrong in the forward pass or the backward pass alone breaks the equation.
#pragma once

#include <functional>

#include "engine/train/verification/thread_run.h"

namespace trainctl {

struct SlopeComparison {
  double measured = 0, expected = 0;
  double rounding = 0;  ///< by how much the result may be wrong because steps of other lengths give other slopes

  double difference() const;  ///< relative
};

/// The loss of the job's first step at weights, which `move` changes: it receives a tensor's name and its values.
using MoveWeights = std::function<void(const std::string& name, std::vector<float>& values)>;
using LossAt = std::function<float(const MoveWeights& move)>;

/// Along the gradients themselves, for which the slope is their norm. `loss` is that at the weights of `run`.
SlopeComparison compare_slope(const TensorValues& gradients, double loss, const LossAt& loss_at);

}  // namespace trainctl
