// torch.optim.NAdam, for CPUs and GPUs. In update t, counted from 1, mu(t) = b1 (1 - 0.96^(t decay) / 2) and p(t) is
// the product of mu(1) to mu(t): m += (1 - b1) (g - m); v = b2 v + (1 - b2) g^2; d = sqrt(v / bias2) + eps; w -= lr ((1
// - mu(t)) / (1 - p(t)) g + mu(t + 1) / (1 - p(t) mu(t + 1)) m) / d. Weight decay: g += wd w, or w *= 1 - lr wd when
// decoupled.
#pragma once

#include <math.h>

#include <array>

#include "engine/ops/host_device.h"
#include "engine/ops/kernel.h"

namespace trainctl {

struct NadamStep {
  float rate1, keep2, rate2, eps, coupled_decay;
  // Per step: clip factor, factors of g and m, 1 / sqrt(bias2), fraction of the weight that decays.
  float scale, of_gradient, of_moment, inverse_sqrt_bias2, decaying;

  TRAINCTL_HOST_DEVICE void update(float g, float& w, std::array<float, 2>& state) const {
    float &m = state[0], &v = state[1];
    const float grad = scale * g + coupled_decay * w;
    m += rate1 * (grad - m);
    v = keep2 * v + rate2 * grad * grad;
    w -= decaying * w;  // a factor 1 - decaying would be rounded in each step
    w -= (of_gradient * grad + of_moment * m) / (sqrtf(v) * inverse_sqrt_bias2 + eps);
  }
};

struct Nadam {
  float beta1, rate1, keep2, rate2, eps, coupled_decay, decoupled_decay;
  float log_decay;  ///< ln(0.96) momentum_decay

  static Nadam of(const Attrs& attrs) {
    const double beta1 = attrs.number("beta1", 0.9), beta2 = attrs.number("beta2", 0.999);
    const auto decay = static_cast<float>(attrs.number("weight_decay", 0.0));
    const bool decoupled = attrs.flag("decoupled");
    return {static_cast<float>(beta1),
            static_cast<float>(1.0 - beta1),
            static_cast<float>(beta2),
            static_cast<float>(1.0 - beta2),
            static_cast<float>(attrs.number("eps", 1e-8)),
            decoupled ? 0.0f : decay,
            decoupled ? decay : 0.0f,
            static_cast<float>(log(0.96) * attrs.number("momentum_decay", 0.004))};
  }
  TRAINCTL_HOST_DEVICE float mu(float t) const { return beta1 * (1.0f - 0.5f * expf(t * log_decay)); }
  /// adam_bias1 of the scalars is 1 - p(t).
  TRAINCTL_HOST_DEVICE NadamStep at(const StepScalars& s, float clip) const {
    const auto t = static_cast<float>(s.step) + 1.0f;
    const float mu_now = mu(t), mu_next = mu(t + 1.0f), lr = s.learning_rate;
    return {rate1,
            keep2,
            rate2,
            eps,
            coupled_decay,
            clip,
            lr * (1.0f - mu_now) / s.adam_bias1,
            lr * mu_next / (1.0f - (1.0f - s.adam_bias1) * mu_next),
            1.0f / sqrtf(s.adam_bias2),
            lr * decoupled_decay};
  }
};

}  // namespace trainctl
