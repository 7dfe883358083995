// The losses of a prediction and a label of the same shape, written once for CPUs and GPUs. `Number` is float or
// double, `Maths` has exp, log1p, sigmoid and abs.
//
//   loss(p, l)    of one element
//   slope(p, l)   its derivative by p
#pragma once

#include "engine/base/attrs.h"
#include "engine/ops/host_device.h"

namespace trainctl {

struct Mae {
  static constexpr const char *kName = "mae", *kGrad = "mae_grad", *kWithGrad = "mae_with_grad";
  explicit Mae(const Attrs&) {}

  template <class Maths, class Number>
  TRAINCTL_DEVICE Number loss(Number p, Number l) const {
    return Maths::abs(p - l);
  }
  template <class Maths>
  TRAINCTL_DEVICE float slope(float p, float l) const {
    const float off = p - l, above = off > 0.0f ? 1.0f : off;  // keeps 0 and NaN
    return off < 0.0f ? -1.0f : above;
  }
};

struct Mse {
  static constexpr const char *kName = "mse", *kGrad = "mse_grad", *kWithGrad = "mse_with_grad";
  explicit Mse(const Attrs&) {}

  template <class Maths, class Number>
  TRAINCTL_DEVICE Number loss(Number p, Number l) const {
    return (p - l) * (p - l);
  }
  template <class Maths>
  TRAINCTL_DEVICE float slope(float p, float l) const {
    return 2.0f * (p - l);
  }
};

/// A parabola next to 0, where it meets |p - l| - beta / 2 at a distance of beta.
struct SmoothL1 {
  static constexpr const char *kName = "smooth_l1", *kGrad = "smooth_l1_grad", *kWithGrad = "smooth_l1_with_grad";
  float beta;
  explicit SmoothL1(const Attrs& attrs) : beta(static_cast<float>(attrs.number("beta", 1))) {}

  template <class Maths, class Number>
  TRAINCTL_DEVICE Number loss(Number p, Number l) const {
    const Number off = Maths::abs(p - l), half = Number(0.5);
    const Number near = half * off * off / beta, far = off - half * beta;
    return off < beta ? near : far;
  }
  template <class Maths>
  TRAINCTL_DEVICE float slope(float p, float l) const {
    const float off = p - l, near = off / beta, above = off > 0.0f ? 1.0f : off, sign = off < 0.0f ? -1.0f : above;
    return Maths::abs(off) < beta ? near : sign;
  }
};

/// -l log s - (1 - l) log(1 - s) with s = sigmoid(p), without computing s.
struct BinaryCrossEntropy {
  static constexpr const char *kName = "binary_cross_entropy", *kGrad = "binary_cross_entropy_grad",
                              *kWithGrad = "binary_cross_entropy_with_grad";
  explicit BinaryCrossEntropy(const Attrs&) {}

  template <class Maths, class Number>
  TRAINCTL_DEVICE Number loss(Number p, Number l) const {
    const auto x = static_cast<float>(p);
    const Number positive = p < 0 ? Number(0) : p;
    return positive - p * l + Maths::log1p(Maths::exp(-Maths::abs(x)));
  }
  template <class Maths>
  TRAINCTL_DEVICE float slope(float p, float l) const {
    return Maths::sigmoid(p) - l;
  }
};

}  // namespace trainctl
