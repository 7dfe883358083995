// LARS (You et al., 2017), for CPUs and GPUs: d = ratio (g + wd w), with ratio = trust |w| / (|g| + wd |w|) of the
// whole parameter, 1 if a norm is 0; buf = momentum buf + d; w -= lr buf, or with nesterov lr (d + momentum buf).
#pragma once

#include <array>

#include "engine/ops/host_device.h"
#include "engine/ops/kernel.h"

namespace trainctl {

struct LarsStep {
  float momentum, decay, trust;
  bool nesterov, adapts;
  float scale = 1, rate = 0;  ///< per step: clip factor, learning rate

  TRAINCTL_HOST_DEVICE void begin(float, std::array<float, 1>&) const {}
  TRAINCTL_HOST_DEVICE float direction(float g, float, const std::array<float, 1>&) const { return scale * g; }
  TRAINCTL_HOST_DEVICE float ratio(float weights, float gradients) const {
    return adapts && weights > 0.0f && gradients > 0.0f ? trust * weights / (gradients + decay * weights) : 1.0f;
  }
  TRAINCTL_HOST_DEVICE void update(float g, float& w, std::array<float, 1>& state, float factor) const {
    const float d = factor * (scale * g + decay * w);
    state[0] = momentum * state[0] + d;
    w -= rate * (nesterov ? d + momentum * state[0] : state[0]);
  }
};

struct Lars {
  LarsStep step;

  static Lars of(const Attrs& attrs) {
    return {{static_cast<float>(attrs.number("momentum")), static_cast<float>(attrs.number("weight_decay")),
             static_cast<float>(attrs.number("trust_coefficient")), attrs.flag("nesterov"), attrs.flag("adapt", true)}};
  }
  TRAINCTL_HOST_DEVICE LarsStep at(const StepScalars& scalars, float clip) const {
    LarsStep now = step;
    now.scale = clip;
    now.rate = scalars.learning_rate;
    return now;
  }
};

}  // namespace trainctl
