// Compares the gradients of a job with its loss: along a direction d in the space of the weights, the loss changes by
// (L(w + h d) - L(w - h d)) / 2h, which must be the product of the gradient and d. This needs no second implementation:
// a kernel whose result is wrong only in the forward pass or only in the backward pass breaks the equation.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/train/verification/thread_run.h"

namespace trainctl {

struct LossSlope {
  std::string of;  ///< the tensor that was moved; "all weights"
  double measured = 0, expected = 0;
  double uncertainty = 0;  ///< relative: by how much the slopes of steps of three lengths differ, and rounding
  double rounding = 0;     ///< the part of it that is rounding

  double difference() const;  ///< relative
  /// Steps of other lengths give other slopes: the loss is not smooth there, so the slope cannot check the gradient.
  bool is_uncertain() const { return uncertainty > difference() / 2; }
};

/// The loss of the job's first step at weights, which `move` changes: it receives a tensor's name and its values.
using MoveWeights = std::function<void(const std::string& name, std::vector<float>& values)>;
using LossAt = std::function<float(const MoveWeights& move)>;

/// Along the gradients themselves, for which the slope is their norm: first of all weights together, then of each
/// tensor alone, those with the largest gradients first, until `seconds` have passed. A slope that differs by more than
/// `tolerance` is measured again with shorter steps. `loss` is that at the unmoved weights.
std::vector<LossSlope> loss_slopes(const TensorValues& gradients, double loss, const LossAt& loss_at, double tolerance,
                                   double seconds);

}  // namespace trainctl
