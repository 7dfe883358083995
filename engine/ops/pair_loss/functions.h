// The losses of a prediction and a label of the same shape, written once for CPUs and GPUs. `Number` is float or
// double, `Maths` has exp, log, log1p, sigmoid, pow and abs.
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

/// -w l log s - (1 - l) log(1 - s) with s = sigmoid(p), without computing s. w is pos_weight. label_smoothing e
/// replaces l by (1 - e) l + e / 2.
struct BinaryCrossEntropy {
  static constexpr const char *kName = "binary_cross_entropy", *kGrad = "binary_cross_entropy_grad",
                              *kWithGrad = "binary_cross_entropy_with_grad";
  float weight, smoothing;
  explicit BinaryCrossEntropy(const Attrs& attrs)
      : weight(static_cast<float>(attrs.number("pos_weight", 1))),
        smoothing(static_cast<float>(attrs.number("label_smoothing", 0))) {}

  template <class Number>
  TRAINCTL_DEVICE Number target(Number l) const {
    return smoothing == 0.0f ? l : l * (1 - smoothing) + smoothing / 2;
  }
  template <class Maths, class Number>
  TRAINCTL_DEVICE Number loss(Number p, Number label) const {
    const auto x = static_cast<float>(p);
    const Number l = target(label);
    const float tail = Maths::log1p(Maths::exp(-Maths::abs(x)));
    if (weight != 1.0f) {
      const Number negative = p < 0 ? -p : Number(0);  // -log s = negative + tail
      return (1 - l) * p + (1 + (weight - 1) * l) * (negative + tail);
    }
    const Number positive = p < 0 ? Number(0) : p;
    return positive - p * l + tail;
  }
  template <class Maths>
  TRAINCTL_DEVICE float slope(float p, float label) const {
    const float l = target(label);
    if (weight != 1.0f) return (1.0f - l) - (1.0f + (weight - 1.0f) * l) * Maths::sigmoid(-p);
    return Maths::sigmoid(p) - l;
  }
};

/// A parabola next to 0, where it meets delta (|p - l| - delta / 2) at a distance of delta.
struct Huber {
  static constexpr const char *kName = "huber", *kGrad = "huber_grad", *kWithGrad = "huber_with_grad";
  float delta;
  explicit Huber(const Attrs& attrs) : delta(static_cast<float>(attrs.number("delta", 1))) {}

  template <class Maths, class Number>
  TRAINCTL_DEVICE Number loss(Number p, Number l) const {
    const Number off = Maths::abs(p - l), half = Number(0.5);
    const Number near = half * off * off, far = delta * (off - half * delta);
    return off < delta ? near : far;
  }
  template <class Maths>
  TRAINCTL_DEVICE float slope(float p, float l) const {
    const float off = p - l, above = off > delta ? delta : off;
    return off < -delta ? -delta : above;
  }
};

/// q (l - p) where the label is above the prediction, else (1 - q) (p - l).
struct Quantile {
  static constexpr const char *kName = "quantile", *kGrad = "quantile_grad", *kWithGrad = "quantile_with_grad";
  float q;
  explicit Quantile(const Attrs& attrs) : q(static_cast<float>(attrs.number("q", 0.5))) {}

  template <class Maths, class Number>
  TRAINCTL_DEVICE Number loss(Number p, Number l) const {
    const Number off = p - l, below = -off * q, above = off * (1 - q);
    return off < 0 ? below : above;
  }
  template <class Maths>
  TRAINCTL_DEVICE float slope(float p, float l) const {
    const float off = p - l, above = off > 0.0f ? 1.0f - q : off;  // keeps 0 and NaN
    return off < 0.0f ? -q : above;
  }
};

/// log cosh(p - l) = |p - l| + log(1 + e^(-2 |p - l|)) - log 2
struct LogCosh {
  static constexpr const char *kName = "log_cosh", *kGrad = "log_cosh_grad", *kWithGrad = "log_cosh_with_grad";
  explicit LogCosh(const Attrs&) {}

  template <class Maths, class Number>
  TRAINCTL_DEVICE Number loss(Number p, Number l) const {
    const Number off = Maths::abs(p - l);
    return off + Maths::log1p(Maths::exp(static_cast<float>(-2 * off))) - Number(0.6931471805599453);
  }
  template <class Maths>
  TRAINCTL_DEVICE float slope(float p, float l) const {
    return 2.0f * Maths::sigmoid(2.0f * (p - l)) - 1.0f;
  }
};

/// e^p - l p: the negative log-likelihood of a count l with rate e^p, without its constant.
struct Poisson {
  static constexpr const char *kName = "poisson", *kGrad = "poisson_grad", *kWithGrad = "poisson_with_grad";
  explicit Poisson(const Attrs&) {}

  template <class Maths, class Number>
  TRAINCTL_DEVICE Number loss(Number p, Number l) const {
    return Maths::exp(static_cast<float>(p)) - l * p;
  }
  template <class Maths>
  TRAINCTL_DEVICE float slope(float p, float l) const {
    return Maths::exp(p) - l;
  }
};

/// a (1 - t)^gamma b, where b is the binary cross-entropy of the logit, t = s l + (1 - s) (1 - l) with s = sigmoid(p),
/// and a = alpha l + (1 - alpha) (1 - l), or 1 if alpha is negative (Lin et al., 2017).
struct Focal {
  static constexpr const char *kName = "focal", *kGrad = "focal_grad", *kWithGrad = "focal_with_grad";
  float alpha, gamma;
  explicit Focal(const Attrs& attrs)
      : alpha(static_cast<float>(attrs.number("alpha", 0.25))), gamma(static_cast<float>(attrs.number("gamma", 2))) {}

  TRAINCTL_DEVICE float share(float l) const { return alpha < 0.0f ? 1.0f : alpha * l + (1.0f - alpha) * (1.0f - l); }
  /// 1 - t
  template <class Maths>
  TRAINCTL_DEVICE float off(float p, float l) const {
    return Maths::sigmoid(-p) * l + Maths::sigmoid(p) * (1.0f - l);
  }
  template <class Maths>
  TRAINCTL_DEVICE float cross_entropy(float p, float l) const {
    const float positive = p < 0.0f ? 0.0f : p;
    return positive - p * l + Maths::log1p(Maths::exp(-Maths::abs(p)));
  }
  template <class Maths, class Number>
  TRAINCTL_DEVICE Number loss(Number prediction, Number label) const {
    const auto p = static_cast<float>(prediction), l = static_cast<float>(label);
    return share(l) * Maths::pow(off<Maths>(p, l), gamma) * cross_entropy<Maths>(p, l);
  }
  template <class Maths>
  TRAINCTL_DEVICE float slope(float p, float l) const {
    const float s = Maths::sigmoid(p), q = off<Maths>(p, l), power = Maths::pow(q, gamma);
    const float before = Maths::abs(q) > 1e-30f ? power / q : 0.0f;  // q^(gamma - 1)
    const float of_power = gamma * before * s * Maths::sigmoid(-p) * (1.0f - 2.0f * l);
    return share(l) * ((s - l) * power + cross_entropy<Maths>(p, l) * of_power);
  }
};

/// l (log l - p) of a probability l, 0 where l is not positive; the prediction is the logarithm of a probability.
struct KlDiv {
  static constexpr const char *kName = "kl_div", *kGrad = "kl_div_grad", *kWithGrad = "kl_div_with_grad";
  explicit KlDiv(const Attrs&) {}

  template <class Maths, class Number>
  TRAINCTL_DEVICE Number loss(Number p, Number l) const {
    return l > 0 ? l * (Maths::log(static_cast<float>(l)) - p) : Number(0);
  }
  template <class Maths>
  TRAINCTL_DEVICE float slope(float p, float l) const {
    return l > 0.0f ? -l : 0.0f * p;  // keeps NaN
  }
};

/// 1 - l p where that is positive, else 0; l is 1 or -1.
struct Hinge {
  static constexpr const char *kName = "hinge", *kGrad = "hinge_grad", *kWithGrad = "hinge_with_grad";
  explicit Hinge(const Attrs&) {}

  template <class Maths, class Number>
  TRAINCTL_DEVICE Number loss(Number p, Number l) const {
    const Number off = 1 - l * p;
    return off < 0 ? Number(0) : off;  // keeps NaN
  }
  template <class Maths>
  TRAINCTL_DEVICE float slope(float p, float l) const {
    return 1.0f - l * p < 0.0f ? 0.0f : -l;
  }
};

/// 1 - p where the label is positive, else p - margin where that is positive: p is the cosine of two embeddings.
struct CosineEmbedding {
  static constexpr const char *kName = "cosine_embedding", *kGrad = "cosine_embedding_grad",
                              *kWithGrad = "cosine_embedding_with_grad";
  float margin;
  explicit CosineEmbedding(const Attrs& attrs) : margin(static_cast<float>(attrs.number("margin", 0))) {}

  template <class Maths, class Number>
  TRAINCTL_DEVICE Number loss(Number p, Number l) const {
    const Number off = p - margin, apart = off < 0 ? Number(0) : off;  // keeps NaN
    return l > 0 ? 1 - p : apart;
  }
  template <class Maths>
  TRAINCTL_DEVICE float slope(float p, float l) const {
    const float apart = p - margin < 0.0f ? 0.0f : 1.0f;
    return l > 0.0f ? -1.0f : apart;
  }
};

/// The prediction itself, which earlier layers have computed as a loss: the label is not used.
struct MeanValue {
  static constexpr const char *kName = "mean_value", *kGrad = "mean_value_grad", *kWithGrad = "mean_value_with_grad";
  explicit MeanValue(const Attrs&) {}

  template <class Maths, class Number>
  TRAINCTL_DEVICE Number loss(Number p, Number) const {
    return p;
  }
  template <class Maths>
  TRAINCTL_DEVICE float slope(float, float) const {
    return 1.0f;
  }
};

}  // namespace trainctl
