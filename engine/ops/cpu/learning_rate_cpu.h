// The learning rate of an update, shared by the optimizer kernels.
#pragma once

#include "engine/ops/kernel.h"

namespace trainctl::cpu {

/// The learning rate of the step times attr learning_rate_scale, which a parameter group may have.
class LearningRate {
 public:
  explicit LearningRate(const KernelCall& call)
      : scalars_(call.scalars), scale_(static_cast<float>(call.attrs.number("learning_rate_scale", 1.0))) {}

  float now() const { return scalars_->learning_rate * scale_; }

 private:
  const StepScalars* scalars_;
  float scale_;
};

}  // namespace trainctl::cpu
