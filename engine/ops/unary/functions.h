// The element-wise functions of one number, and the gradient of each, written once for CPUs and GPUs. `Maths` has the
// device's exp, log, log1p, sigmoid, tanh, sqrt, abs, pow, sin and cos in single precision.
//
//   value(x, p)       f(x)
//   grad(dy, at, p)   dy * f'(x); `at` is x, or f(x) if kUnary says of_result
#pragma once

#include <type_traits>
#include <utility>

#include "engine/ops/host_device.h"
#include "engine/ops/unary/unary.h"

namespace trainctl {

template <Unary kFunction, class Maths>
struct UnaryFunction;

/// x sigmoid(x)
template <class Maths>
struct UnaryFunction<Unary::silu, Maths> {
  TRAINCTL_DEVICE static float value(float x, UnaryParameters) { return x * Maths::sigmoid(x); }
  TRAINCTL_DEVICE static float grad(float dy, float x, UnaryParameters) {
    const float s = Maths::sigmoid(x);
    return dy * (s * (1.0f + x * (1.0f - s)));
  }
};

/// x where x > 0, else a x
template <class Maths>
struct UnaryFunction<Unary::leaky_relu, Maths> {
  TRAINCTL_DEVICE static float value(float x, UnaryParameters p) { return x > 0.0f ? x : p.a * x; }
  TRAINCTL_DEVICE static float grad(float dy, float x, UnaryParameters p) {
    const float below = p.a * dy;
    return x > 0.0f ? dy : below;
  }
};

/// log(1 + e^(a x)) / a; x where a x > b
template <class Maths>
struct UnaryFunction<Unary::softplus, Maths> {
  TRAINCTL_DEVICE static float value(float x, UnaryParameters p) {
    const float t = p.a * x, positive = t < 0.0f ? 0.0f : t;
    const float soft = (positive + Maths::log1p(Maths::exp(-Maths::abs(t)))) / p.a;
    return t > p.b ? x : soft;
  }
  TRAINCTL_DEVICE static float grad(float dy, float x, UnaryParameters p) {
    const float t = p.a * x, soft = dy * Maths::sigmoid(t);
    return t > p.b ? dy : soft;
  }
};

/// The nearest number in [a, b]; keeps NaN.
template <class Maths>
struct UnaryFunction<Unary::clip, Maths> {
  TRAINCTL_DEVICE static float value(float x, UnaryParameters p) {
    const float low = x < p.a ? p.a : x;
    return low > p.b ? p.b : low;
  }
  TRAINCTL_DEVICE static float grad(float dy, float x, UnaryParameters p) {
    const float low = x < p.a ? 0.0f : dy;
    return x > p.b ? 0.0f : low;
  }
};

/// |x|; its slope at 0 is 0.
template <class Maths>
struct UnaryFunction<Unary::abs, Maths> {
  TRAINCTL_DEVICE static float value(float x, UnaryParameters) { return Maths::abs(x); }
  TRAINCTL_DEVICE static float grad(float dy, float x, UnaryParameters) {
    const float down = -dy, at_least_0 = x > 0.0f ? dy : 0.0f;
    return x < 0.0f ? down : at_least_0;
  }
};

/// e^x
template <class Maths>
struct UnaryFunction<Unary::exp, Maths> {
  TRAINCTL_DEVICE static float value(float x, UnaryParameters) { return Maths::exp(x); }
  TRAINCTL_DEVICE static float grad(float dy, float y, UnaryParameters) { return dy * y; }
};

/// ln x
template <class Maths>
struct UnaryFunction<Unary::log, Maths> {
  TRAINCTL_DEVICE static float value(float x, UnaryParameters) { return Maths::log(x); }
  TRAINCTL_DEVICE static float grad(float dy, float x, UnaryParameters) { return dy / x; }
};

template <class Maths>
struct UnaryFunction<Unary::sqrt, Maths> {
  TRAINCTL_DEVICE static float value(float x, UnaryParameters) { return Maths::sqrt(x); }
  TRAINCTL_DEVICE static float grad(float dy, float y, UnaryParameters) { return 0.5f * dy / y; }
};

/// x^a. The exponents that occur most need no logarithm.
template <class Maths>
struct UnaryFunction<Unary::pow, Maths> {
  TRAINCTL_DEVICE static float power(float x, float exponent) {
    if (exponent == 0.0f) return 1.0f;
    if (exponent == 1.0f) return x;
    if (exponent == 2.0f) return x * x;
    if (exponent == 3.0f) return x * x * x;
    if (exponent == 0.5f) return Maths::sqrt(x);
    if (exponent == -0.5f) return 1.0f / Maths::sqrt(x);
    if (exponent == -1.0f) return 1.0f / x;
    if (exponent == -2.0f) return 1.0f / (x * x);
    return Maths::pow(x, exponent);
  }
  TRAINCTL_DEVICE static float value(float x, UnaryParameters p) { return power(x, p.a); }
  TRAINCTL_DEVICE static float grad(float dy, float x, UnaryParameters p) {
    return p.a == 0.0f ? 0.0f : dy * p.a * power(x, p.a - 1.0f);
  }
};

/// a x + b
template <class Maths>
struct UnaryFunction<Unary::scale, Maths> {
  TRAINCTL_DEVICE static float value(float x, UnaryParameters p) { return p.a * x + p.b; }
  TRAINCTL_DEVICE static float grad(float dy, float, UnaryParameters p) { return p.a * dy; }
};

/// a tanh(x / a)
template <class Maths>
struct UnaryFunction<Unary::softcap, Maths> {
  TRAINCTL_DEVICE static float value(float x, UnaryParameters p) { return p.a * Maths::tanh(x / p.a); }
  TRAINCTL_DEVICE static float grad(float dy, float y, UnaryParameters p) {
    const float capped = y / p.a;
    return dy * (1.0f - capped * capped);
  }
};

/// x sigmoid(1.702 x)
template <class Maths>
struct UnaryFunction<Unary::quick_gelu, Maths> {
  TRAINCTL_DEVICE static float value(float x, UnaryParameters) { return x * Maths::sigmoid(1.702f * x); }
  TRAINCTL_DEVICE static float grad(float dy, float x, UnaryParameters) {
    const float s = Maths::sigmoid(1.702f * x);
    return dy * (s * (1.0f + 1.702f * x * (1.0f - s)));
  }
};

/// x where x > 0, else a (e^x - 1)
template <class Maths>
struct UnaryFunction<Unary::elu, Maths> {
  TRAINCTL_DEVICE static float value(float x, UnaryParameters p) {
    const float below = p.a * (Maths::exp(x) - 1.0f);
    return x > 0.0f ? x : below;
  }
  TRAINCTL_DEVICE static float grad(float dy, float x, UnaryParameters p) {
    const float below = dy * p.a * Maths::exp(x);
    return x > 0.0f ? dy : below;
  }
};

/// s x where x > 0, else s alpha (e^x - 1): constants that keep mean 0 and variance 1 (Klambauer et al., 2017).
template <class Maths>
struct UnaryFunction<Unary::selu, Maths> {
  static constexpr float kScale = 1.0507009873554805f, kBelow = 1.7580993408473766f;  // s, s alpha
  TRAINCTL_DEVICE static float value(float x, UnaryParameters) {
    const float above = kScale * x, below = kBelow * (Maths::exp(x) - 1.0f);
    return x > 0.0f ? above : below;
  }
  TRAINCTL_DEVICE static float grad(float dy, float x, UnaryParameters) {
    const float above = dy * kScale, below = dy * kBelow * Maths::exp(x);
    return x > 0.0f ? above : below;
  }
};

/// x tanh(log(1 + e^x))
template <class Maths>
struct UnaryFunction<Unary::mish, Maths> {
  TRAINCTL_DEVICE static float tanh_of_softplus(float x) {
    const float positive = x < 0.0f ? 0.0f : x;
    return Maths::tanh(positive + Maths::log1p(Maths::exp(-Maths::abs(x))));
  }
  TRAINCTL_DEVICE static float value(float x, UnaryParameters) { return x * tanh_of_softplus(x); }
  TRAINCTL_DEVICE static float grad(float dy, float x, UnaryParameters) {
    const float t = tanh_of_softplus(x);
    return dy * (t + x * (1.0f - t * t) * Maths::sigmoid(x));
  }
};

/// x min(max(x + 3, 0), 6) / 6
template <class Maths>
struct UnaryFunction<Unary::hardswish, Maths> {
  TRAINCTL_DEVICE static float value(float x, UnaryParameters) {
    const float low = x + 3.0f < 0.0f ? 0.0f : x + 3.0f, bounded = low > 6.0f ? 6.0f : low;
    return x * bounded / 6.0f;
  }
  TRAINCTL_DEVICE static float grad(float dy, float x, UnaryParameters) {
    const float between = dy * (x / 3.0f + 0.5f), low = x < -3.0f ? 0.0f : between;
    return x > 3.0f ? dy : low;
  }
};

/// min(max(x / 6 + 1/2, 0), 1)
template <class Maths>
struct UnaryFunction<Unary::hardsigmoid, Maths> {
  TRAINCTL_DEVICE static float value(float x, UnaryParameters) {
    const float t = x / 6.0f + 0.5f, low = t < 0.0f ? 0.0f : t;
    return low > 1.0f ? 1.0f : low;
  }
  TRAINCTL_DEVICE static float grad(float dy, float x, UnaryParameters) {
    const float low = x > -3.0f ? dy / 6.0f : 0.0f;
    return x < 3.0f ? low : 0.0f;
  }
};

/// x / (1 + |x|)
template <class Maths>
struct UnaryFunction<Unary::softsign, Maths> {
  TRAINCTL_DEVICE static float value(float x, UnaryParameters) { return x / (1.0f + Maths::abs(x)); }
  TRAINCTL_DEVICE static float grad(float dy, float x, UnaryParameters) {
    const float below = 1.0f + Maths::abs(x);
    return dy / (below * below);
  }
};

/// log(sigmoid(x)) = min(x, 0) - log(1 + e^-|x|)
template <class Maths>
struct UnaryFunction<Unary::log_sigmoid, Maths> {
  TRAINCTL_DEVICE static float value(float x, UnaryParameters) {
    const float negative = x > 0.0f ? 0.0f : x;
    return negative - Maths::log1p(Maths::exp(-Maths::abs(x)));
  }
  TRAINCTL_DEVICE static float grad(float dy, float x, UnaryParameters) { return dy * Maths::sigmoid(-x); }
};

template <class Maths>
struct UnaryFunction<Unary::sin, Maths> {
  TRAINCTL_DEVICE static float value(float x, UnaryParameters) { return Maths::sin(x); }
  TRAINCTL_DEVICE static float grad(float dy, float x, UnaryParameters) { return dy * Maths::cos(x); }
};

template <class Maths>
struct UnaryFunction<Unary::cos, Maths> {
  TRAINCTL_DEVICE static float value(float x, UnaryParameters) { return Maths::cos(x); }
  TRAINCTL_DEVICE static float grad(float dy, float x, UnaryParameters) { return -dy * Maths::sin(x); }
};

template <class Use, size_t... kIndices>
TRAINCTL_DEVICE void with_unary(Unary function, Use use, std::index_sequence<kIndices...>) {
  const auto is_it = [&](auto index) {
    constexpr auto kFunction = static_cast<Unary>(index.value);
    if (kFunction != function) return false;
    use(std::integral_constant<Unary, kFunction>{});
    return true;
  };
  (is_it(std::integral_constant<size_t, kIndices>{}) || ...);
}
/// Calls use(std::integral_constant<Unary, function>).
template <class Use>
TRAINCTL_DEVICE void with_unary(Unary function, Use use) {
  with_unary(function, use, std::make_index_sequence<std::size(kUnary)>{});
}

}  // namespace trainctl
