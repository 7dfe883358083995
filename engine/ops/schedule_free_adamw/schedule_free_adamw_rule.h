// Schedule-free AdamW (Defazio et al., 2024), for CPUs and GPUs. The weights y are those where gradients are taken; x
// is their average, which is evaluated. c is the weight of the new z in it.
//
//   v = b2 v + (1 - b2) g^2;  d = g / (sqrt(v / (1 - b2^t)) + eps) + wd y
//   z -= lr d;  x = (1 - c) x + c z;  y = b1 x + (1 - b1) z          z = y before the first update, where c is 1
#pragma once

#include <math.h>

#include <array>

#include "engine/ops/host_device.h"
#include "engine/ops/kernel.h"

namespace trainctl {

struct ScheduleFreeStep {
  float beta1, beta2, rest2, eps, decay;
  float scale = 1, rate = 0, root_bias2 = 1, share = 1;  ///< per step: clip factor, learning rate, correction, c

  /// states: z, v, x
  TRAINCTL_HOST_DEVICE void update(float g, float& y, std::array<float, 3>& state) const {
    float &z = state[0], &v = state[1], &x = state[2];
    const float grad = scale * g;
    v = beta2 * v + rest2 * grad * grad;
    const float d = grad / (sqrtf(v) / root_bias2 + eps) + decay * y;
    z = (share == 1.0f ? y : z) - rate * d;
    x = share == 1.0f ? z : x + share * (z - x);
    y = z + beta1 * (x - z);
  }
};

struct ScheduleFree {
  ScheduleFreeStep step;

  static ScheduleFree of(const Attrs& attrs) {
    const double beta2 = attrs.number("beta2");
    return {{static_cast<float>(attrs.number("beta1")), static_cast<float>(beta2), static_cast<float>(1 - beta2),
             static_cast<float>(attrs.number("eps")), static_cast<float>(attrs.number("weight_decay"))}};
  }
  TRAINCTL_HOST_DEVICE ScheduleFreeStep at(const StepScalars& scalars, float clip) const {
    ScheduleFreeStep now = step;
    now.scale = clip;
    now.rate = scalars.learning_rate;
    now.root_bias2 = sqrtf(scalars.adam_bias2);
    now.share = scalars.average_rate;
    return now;
  }
};

}  // namespace trainctl
