// torch.optim.RMSprop, for CPUs and GPUs: g += wd w; s = alpha s + (1 - alpha) g^2; centered: a += (1 - alpha) (g - a);
// d = g / (sqrt(s - a^2) + eps); momentum: b = momentum b + d; w -= lr b, else w -= lr d.
#pragma once

#include <math.h>

#include <array>

#include "engine/ops/host_device.h"
#include "engine/ops/kernel.h"

namespace trainctl {

/// States: s, then b with momentum, then a if centered.
template <bool kMomentum, bool kCentered>
struct RmspropStep {
  static constexpr int kStates = 1 + (kMomentum ? 1 : 0) + (kCentered ? 1 : 0);
  float alpha, rest, eps, decay, momentum;
  float scale = 1, rate = 0;  ///< per step: clip factor, learning rate

  TRAINCTL_HOST_DEVICE void update(float g, float& w, std::array<float, kStates>& state) const {
    const float grad = scale * g + decay * w;
    state[0] = alpha * state[0] + rest * grad * grad;
    float variance = state[0];
    if constexpr (kCentered) {
      float& mean = state[kStates - 1];
      mean += rest * (grad - mean);
      variance -= mean * mean;
      variance = variance < 0.0f ? 0.0f : variance;  // rounding; keeps NaN
    }
    const float change = grad / (sqrtf(variance) + eps);
    if constexpr (kMomentum) {
      state[1] = momentum * state[1] + change;
      w -= rate * state[1];
    } else {
      w -= rate * change;
    }
  }
};

template <bool kMomentum, bool kCentered>
struct Rmsprop {
  RmspropStep<kMomentum, kCentered> step;

  static Rmsprop of(const Attrs& attrs) {
    const double alpha = attrs.number("alpha", 0.99);
    return {{static_cast<float>(alpha), static_cast<float>(1.0 - alpha), static_cast<float>(attrs.number("eps", 1e-8)),
             static_cast<float>(attrs.number("weight_decay", 0.0)), static_cast<float>(attrs.number("momentum", 0.0))}};
  }
  TRAINCTL_HOST_DEVICE RmspropStep<kMomentum, kCentered> at(const StepScalars& s, float clip) const {
    RmspropStep<kMomentum, kCentered> now = step;
    now.scale = clip;
    now.rate = s.learning_rate;
    return now;
  }
};

/// Calls use(rule) with the rule that the attrs choose.
template <class Use>
auto with_rmsprop(const Attrs& attrs, Use use) {
  const bool momentum = attrs.number("momentum", 0.0) != 0, centered = attrs.flag("centered");
  if (momentum) return centered ? use(Rmsprop<true, true>::of(attrs)) : use(Rmsprop<true, false>::of(attrs));
  return centered ? use(Rmsprop<false, true>::of(attrs)) : use(Rmsprop<false, false>::of(attrs));
}

}  // namespace trainctl
