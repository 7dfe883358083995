// The scale of the loss in the backward pass (StepScalars::loss_scale), as kernels of losses and of updates use it.
#pragma once

#include "engine/ops/host_device.h"
#include "engine/ops/kernel.h"

namespace trainctl {

/// For kernels of updates. With the attr `unscale` their gradients are those of the scaled loss: the true gradients
/// times StepScalars::loss_scale.
struct GradientScale {
  const StepScalars* scalars = nullptr;  ///< null: the gradients are not scaled

  static GradientScale of(const KernelCall& call) { return {call.attrs.flag("unscale") ? call.scalars : nullptr}; }
  /// The factor that turns a gradient of the scaled loss, or its norm, into that of the loss.
  TRAINCTL_HOST_DEVICE float inverse() const { return scalars == nullptr ? 1.0f : 1.0f / scalars->loss_scale; }
  /// Converts a bound on gradients of the loss into a bound on gradients of the scaled loss.
  TRAINCTL_HOST_DEVICE float scaled(float bound) const {
    return scalars == nullptr ? bound : bound * scalars->loss_scale;
  }
};

}  // namespace trainctl
