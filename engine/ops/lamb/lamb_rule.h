// LAMB (You et al., 2020), for CPUs and GPUs: m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g^2, both corrected for their
// bias; u = m / (sqrt(v) + eps) + wd w; w -= lr |w| / |u| u, with the norms of the whole parameter, 1 if one is 0.
#pragma once

#include <math.h>

#include <array>

#include "engine/ops/host_device.h"
#include "engine/ops/kernel.h"

namespace trainctl {

struct LambStep {
  float beta1, rest1, beta2, rest2, eps, decay;
  bool adapts;
  float scale = 1, rate = 0, bias1 = 1, root_bias2 = 1;  ///< per step: clip factor, learning rate, bias corrections

  TRAINCTL_HOST_DEVICE void begin(float g, std::array<float, 2>& state) const {
    const float grad = scale * g;
    state[0] = beta1 * state[0] + rest1 * grad;
    state[1] = beta2 * state[1] + rest2 * grad * grad;
  }
  TRAINCTL_HOST_DEVICE float direction(float, float w, const std::array<float, 2>& state) const {
    return state[0] / bias1 / (sqrtf(state[1]) / root_bias2 + eps) + decay * w;
  }
  TRAINCTL_HOST_DEVICE float ratio(float weights, float directions) const {
    return adapts && weights > 0.0f && directions > 0.0f ? weights / directions : 1.0f;
  }
  TRAINCTL_HOST_DEVICE void update(float g, float& w, std::array<float, 2>& state, float factor) const {
    w -= rate * factor * direction(g, w, state);
  }
};

struct Lamb {
  LambStep step;

  static Lamb of(const Attrs& attrs) {
    const double beta1 = attrs.number("beta1"), beta2 = attrs.number("beta2");
    return {{static_cast<float>(beta1), static_cast<float>(1 - beta1), static_cast<float>(beta2),
             static_cast<float>(1 - beta2), static_cast<float>(attrs.number("eps")),
             static_cast<float>(attrs.number("weight_decay")), attrs.flag("adapt", true)}};
  }
  TRAINCTL_HOST_DEVICE LambStep at(const StepScalars& scalars, float clip) const {
    LambStep now = step;
    now.scale = clip;
    now.rate = scalars.learning_rate;
    now.bias1 = scalars.adam_bias1;
    now.root_bias2 = sqrtf(scalars.adam_bias2);
    return now;
  }
};

}  // namespace trainctl
