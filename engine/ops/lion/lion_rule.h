// Lion (Chen et al., 2023), for CPUs and GPUs: w = w (1 - lr wd) - lr sign(b1 m + (1 - b1) g); m = b2 m + (1 - b2) g.
#pragma once

#include <array>

#include "engine/ops/host_device.h"
#include "engine/ops/kernel.h"

namespace trainctl {

struct LionStep {
  float keep1, rate1, keep2, rate2;
  /// Per step: clip factor, learning rate, subtracted fraction of the weight (a factor 1 - decaying would be rounded).
  float scale, rate, decaying;

  TRAINCTL_HOST_DEVICE void update(float g, float& w, std::array<float, 1>& state) const {
    const float grad = scale * g, ahead = keep1 * state[0] + rate1 * grad;
    const float up = ahead > 0.0f ? 1.0f : ahead;  // keeps 0 and NaN
    w -= decaying * w + rate * (ahead < 0.0f ? -1.0f : up);
    state[0] = keep2 * state[0] + rate2 * grad;
  }
};

struct Lion {
  float keep1, rate1, keep2, rate2, decay;

  static Lion of(const Attrs& attrs) {
    const double beta1 = attrs.number("beta1", 0.9), beta2 = attrs.number("beta2", 0.99);
    return {static_cast<float>(beta1), static_cast<float>(1.0 - beta1), static_cast<float>(beta2),
            static_cast<float>(1.0 - beta2), static_cast<float>(attrs.number("weight_decay", 0.0))};
  }
  TRAINCTL_HOST_DEVICE LionStep at(const StepScalars& s, float clip) const {
    return {keep1, rate1, keep2, rate2, clip, s.learning_rate, s.learning_rate * decay};
  }
};

}  // namespace trainctl
