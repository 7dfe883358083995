// The scale of the loss in the backward pass (StepScalars::loss_scale), as kernels of losses and of updates use it.
#pragma once

#include "engine/ops/host_device.h"
#include "engine/ops/kernel.h"

namespace trainctl {

/// For kernels of updates, whose gradients are those of the loss times the scale if the attr `unscale` is set.
struct GradientScale {
  const StepScalars* scalars = nullptr;  ///< null: gradients are those of the loss

  static GradientScale of(const KernelCall& call) { return {call.attrs.flag("unscale") ? call.scalars : nullptr}; }
  /// Multiplies a gradient, or its norm.
  TRAINCTL_HOST_DEVICE float inverse() const { return scalars == nullptr ? 1.0f : 1.0f / scalars->loss_scale; }
  /// A bound of gradients as a bound of scaled ones.
  TRAINCTL_HOST_DEVICE float scaled(float bound) const {
    return scalars == nullptr ? bound : bound * scalars->loss_scale;
  }
};

}  // namespace trainctl
