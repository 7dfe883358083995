// The element-wise functions of one number, and the gradient of each, written once for CPUs and GPUs. `Maths` has the
// device's exp, log, log1p, sigmoid, tanh, sqrt, abs and pow in single precision.
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
