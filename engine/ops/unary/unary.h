// The element-wise functions of one number: what the ops, their kernels and the tokens of element-wise chains share.
// The formulas: functions.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>

#include "engine/base/attrs.h"

namespace trainctl {

/// In the order of kUnary.
enum class Unary : uint8_t {
  silu,
  leaky_relu,
  softplus,
  clip,
  abs,
  exp,
  log,
  sqrt,
  pow,
  scale,
  softcap,
  quick_gelu,
  elu,
  selu,
  mish,
  hardswish,
  hardsigmoid,
  softsign,
  log_sigmoid,
  sin,
  cos
};

/// Values of kUnary's attrs, in that order.
struct UnaryParameters {
  float a = 0, b = 0;
};

struct UnaryDef {
  struct Parameter {
    const char* name = nullptr;  ///< name of the attr; null: there is none
    double otherwise = 0;        ///< if the attr is absent
    double example = 0;          ///< for KernelExample
  };

  const char* name;       ///< name of the layer, the op and the token
  const char* grad_name;  ///< name of the gradient's op, which reads dy and x, or dy and y
  const char* formula;
  Parameter parameters[2] = {};
  bool of_result = false;  ///< the gradient reads y, else x
  int flops = 1;
};

inline constexpr double kNoBound = std::numeric_limits<double>::infinity();

inline constexpr UnaryDef kUnary[] = {
    {"silu", "silu_grad", "y = x sigmoid(x)", {}, false, 12},
    {"leaky_relu", "leaky_relu_grad", "y = x where x > 0, else negative_slope x", {{"negative_slope", 0.01, 0.01}}},
    {"softplus", "softplus_grad", "y = log(1 + e^(beta x)) / beta", {{"beta", 1, 1}, {"threshold", 20, 20}}, false, 25},
    {"clip", "clip_grad", "y = min(max(x, low), high)", {{"min", -kNoBound, -1}, {"max", kNoBound, 1}}},
    {"abs", "abs_grad", "y = |x|"},
    {"exp", "exp_grad", "y = e^x", {}, true, 10},
    {"log", "log_grad", "y = ln x", {}, false, 12},
    {"sqrt", "sqrt_grad", "y = the square root of x", {}, true, 2},
    {"pow", "pow_grad", "y = x^exponent", {{"exponent", 2, 2}}, false, 20},
    {"scale", "scale", "y = factor x + shift", {{"factor", 1, 2}, {"shift", 0, 1}}},
    {"softcap", "softcap_grad", "y = cap tanh(x / cap)", {{"cap", 1, 30}}, true, 12},
    {"quick_gelu", "quick_gelu_grad", "y = x sigmoid(1.702 x)", {}, false, 13},
    {"elu", "elu_grad", "y = x where x > 0, else alpha (e^x - 1)", {{"alpha", 1, 1}}, false, 12},
    {"selu", "selu_grad", "y = 1.0507 x where x > 0, else 1.7581 (e^x - 1)", {}, false, 12},
    {"mish", "mish_grad", "y = x tanh(log(1 + e^x))", {}, false, 40},
    {"hardswish", "hardswish_grad", "y = x min(max(x + 3, 0), 6) / 6", {}, false, 5},
    {"hardsigmoid", "hardsigmoid_grad", "y = min(max(x / 6 + 1/2, 0), 1)", {}, false, 4},
    {"softsign", "softsign_grad", "y = x / (1 + |x|)", {}, false, 6},
    {"log_sigmoid", "log_sigmoid_grad", "y = log(sigmoid(x))", {}, false, 25},
    {"sin", "sin_grad", "y = sin x", {}, false, 20},
    {"cos", "cos_grad", "y = cos x", {}, false, 20},
};

constexpr const UnaryDef& unary_def(Unary function) { return kUnary[static_cast<size_t>(function)]; }

inline UnaryParameters unary_parameters(Unary function, const Attrs& attrs) {
  const auto& [a, b] = unary_def(function).parameters;
  return {a.name == nullptr ? 0.0f : static_cast<float>(attrs.number(a.name, a.otherwise)),
          b.name == nullptr ? 0.0f : static_cast<float>(attrs.number(b.name, b.otherwise))};
}

}  // namespace trainctl
