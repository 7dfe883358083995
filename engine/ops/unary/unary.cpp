// The element-wise functions of one number: silu, leaky_relu, softplus, clip, abs, exp, log, sqrt, pow, scale,
// softcap, quick_gelu, elu, selu, mish, hardswish, hardsigmoid, softsign, log_sigmoid, sin, cos. A row of kUnary
// (unary.h) and the formulas of functions.h give the ops, their kernels and their tokens.
#include "engine/ops/unary/unary.h"

#include "engine/ops/elementwise.h"
#include "engine/ops/elementwise/expression.h"
#include "engine/ops/examples.h"
#include "engine/ops/expect.h"
#include "engine/ops/grad_builder.h"
#include "engine/ops/layer_def.h"
#include "engine/ops/op_family.h"

namespace trainctl {
namespace {

template <Unary kFunction>
KernelExample example_of(const char* what, size_t inputs) {
  KernelExample shown{.what = what, .inputs = std::vector<KernelExample::Input>(inputs, {example::kMatrix})};
  for (const auto& parameter : unary_def(kFunction).parameters) {
    if (parameter.name != nullptr) shown.attrs.set(parameter.name, parameter.example);
  }
  return shown;
}

/// Builds the backward node of a function. The gradient of `scale` needs neither x nor y.
template <Unary kFunction>
void unary_backward(GradBuilder& g) {
  constexpr const UnaryDef& def = unary_def(kFunction);
  if (kFunction == Unary::scale) {
    g.set_in_grad(0, def.name, {g.out_grad()}, {{"factor", g.attrs().number("factor", 1)}});
  } else {
    g.set_in_grad(0, def.grad_name, {g.out_grad(), def.of_result ? g.out() : g.in(0)}, g.attrs());
  }
}

template <Unary kFunction>
constexpr OpDef op_of() {
  return {.name = unary_def(kFunction).name,
          .infer = [](Infos in, const Attrs&) { return infer_elementwise(unary_def(kFunction).name, in, 1); },
          .rule = elementwise_rule,
          .backward = unary_backward<kFunction>,
          .kernel = {.name = unary_def(kFunction).name,
                     .in_place = InPlace::first_on_first,
                     .element = [](const Attrs& attrs) { return unary_token(kFunction, false, attrs); },
                     .channels_last = elementwise_images,
                     .cost = elementwise_cost<unary_def(kFunction).flops>,
                     .example = [] { return example_of<kFunction>(unary_def(kFunction).formula, 1); }}};
}

/// (dy, x) -> dx, or (dy, y) -> dx
template <Unary kFunction>
constexpr OpDef unary_grad() {
  return {.name = unary_def(kFunction).grad_name,
          .infer = [](Infos in, const Attrs&) { return infer_elementwise(unary_def(kFunction).grad_name, in, 2); },
          .rule = elementwise_rule,
          .kernel = {.name = unary_def(kFunction).grad_name,
                     .in_place = InPlace::first_on_first,
                     .element = [](const Attrs& attrs) { return unary_token(kFunction, true, attrs); },
                     .channels_last = elementwise_images,
                     .cost = elementwise_cost<unary_def(kFunction).flops + 2>,
                     .example =
                         [] {
                           return example_of<kFunction>(
                               unary_def(kFunction).of_result ? "inputs dy, y" : "inputs dy, x", 2);
                         }}};
}

template <Unary kFunction>
TensorId emit(LayerContext& layer) {
  return layer.emit(unary_def(kFunction).name, layer.attrs);
}

std::vector<FieldFault> faults_of_clip(const Attrs& attrs) {
  if (!attrs.has("min") && !attrs.has("max")) return {{"min", "clip needs 'min', 'max' or both", "min: 0"}};
  if (attrs.number("min", -kNoBound) <= attrs.number("max", kNoBound)) return {};
  return {{"min", "min is greater than max", ""}};
}

}  // namespace

extern const OpDef silu_op = op_of<Unary::silu>(), silu_grad_op = unary_grad<Unary::silu>();
extern const OpDef leaky_relu_op = op_of<Unary::leaky_relu>(), leaky_relu_grad_op = unary_grad<Unary::leaky_relu>();
extern const OpDef softplus_op = op_of<Unary::softplus>(), softplus_grad_op = unary_grad<Unary::softplus>();
extern const OpDef clip_op = op_of<Unary::clip>(), clip_grad_op = unary_grad<Unary::clip>();
extern const OpDef abs_op = op_of<Unary::abs>(), abs_grad_op = unary_grad<Unary::abs>();
extern const OpDef exp_op = op_of<Unary::exp>(), exp_grad_op = unary_grad<Unary::exp>();
extern const OpDef log_op = op_of<Unary::log>(), log_grad_op = unary_grad<Unary::log>();
extern const OpDef sqrt_op = op_of<Unary::sqrt>(), sqrt_grad_op = unary_grad<Unary::sqrt>();
extern const OpDef pow_op = op_of<Unary::pow>(), pow_grad_op = unary_grad<Unary::pow>();
extern const OpDef scale_op = op_of<Unary::scale>();
extern const OpDef softcap_op = op_of<Unary::softcap>(), softcap_grad_op = unary_grad<Unary::softcap>();
extern const OpDef quick_gelu_op = op_of<Unary::quick_gelu>(), quick_gelu_grad_op = unary_grad<Unary::quick_gelu>();
extern const OpDef elu_op = op_of<Unary::elu>(), elu_grad_op = unary_grad<Unary::elu>();
extern const OpDef selu_op = op_of<Unary::selu>(), selu_grad_op = unary_grad<Unary::selu>();
extern const OpDef mish_op = op_of<Unary::mish>(), mish_grad_op = unary_grad<Unary::mish>();
extern const OpDef hardswish_op = op_of<Unary::hardswish>(), hardswish_grad_op = unary_grad<Unary::hardswish>();
extern const OpDef hardsigmoid_op = op_of<Unary::hardsigmoid>(), hardsigmoid_grad_op = unary_grad<Unary::hardsigmoid>();
extern const OpDef softsign_op = op_of<Unary::softsign>(), softsign_grad_op = unary_grad<Unary::softsign>();
extern const OpDef log_sigmoid_op = op_of<Unary::log_sigmoid>(), log_sigmoid_grad_op = unary_grad<Unary::log_sigmoid>();
extern const OpDef sin_op = op_of<Unary::sin>(), sin_grad_op = unary_grad<Unary::sin>();
extern const OpDef cos_op = op_of<Unary::cos>(), cos_grad_op = unary_grad<Unary::cos>();

extern const LayerDef silu_layer = {
    .name = "silu", .doc = "Computes x * sigmoid(x) (swish).", .emit = emit<Unary::silu>};

extern const LayerDef leaky_relu_layer = {
    .name = "leaky_relu",
    .doc = "Computes x where x > 0, else negative_slope * x.",
    .fields = {number("negative_slope", "Slope for negative inputs.").defaults(0.01)},
    .emit = emit<Unary::leaky_relu>,
};

extern const LayerDef softplus_layer = {
    .name = "softplus",
    .doc = "Computes log(1 + exp(beta * x)) / beta.",
    .fields = {number("beta", "Sharpness; larger values are closer to relu.").defaults(1.0).above(0),
               number("threshold", "Threshold for beta * x above which the result is x.").defaults(20.0)},
    .emit = emit<Unary::softplus>,
};

extern const LayerDef clip_layer = {
    .name = "clip",
    .doc = "Limits x to [min, max]; the gradient is 0 outside.",
    .fields = {number("min", "Lower bound; none if omitted."), number("max", "Upper bound; none if omitted.")},
    .faults = faults_of_clip,
    .emit = emit<Unary::clip>,
};

extern const LayerDef abs_layer = {.name = "abs", .doc = "|x|.", .emit = emit<Unary::abs>};
extern const LayerDef exp_layer = {.name = "exp", .doc = "e^x.", .emit = emit<Unary::exp>};
extern const LayerDef log_layer = {.name = "log", .doc = "Natural logarithm.", .emit = emit<Unary::log>};
extern const LayerDef sqrt_layer = {.name = "sqrt", .doc = "Square root.", .emit = emit<Unary::sqrt>};

extern const LayerDef pow_layer = {
    .name = "pow",
    .doc = "x^exponent.",
    .fields = {number("exponent", "The exponent; it can be negative.").required()},
    .emit = emit<Unary::pow>,
};

extern const LayerDef scale_layer = {
    .name = "scale",
    .doc = "Computes factor * x + shift with two constants.",
    .fields = {number("factor", "Multiplies.").defaults(1.0),
               number("shift", "Constant added after scaling.").defaults(0.0)},
    .emit = emit<Unary::scale>,
};

extern const LayerDef softcap_layer = {
    .name = "softcap",
    .doc = "Computes cap * tanh(x / cap), which limits x softly to [-cap, cap] (Gemma 2's logits).",
    .fields = {number("cap", "Limit of the absolute value of the output.").required().above(0)},
    .emit = emit<Unary::softcap>,
};

extern const LayerDef quick_gelu_layer = {
    .name = "quick_gelu",
    .doc = "Computes x * sigmoid(1.702 * x), an approximation of gelu (CLIP).",
    .emit = emit<Unary::quick_gelu>,
};

extern const LayerDef elu_layer = {
    .name = "elu",
    .doc = "Computes x where x > 0, else alpha * (e^x - 1).",
    .fields = {number("alpha", "Scale for negative inputs, for which the output approaches -alpha.").defaults(1.0)},
    .emit = emit<Unary::elu>,
};

extern const LayerDef selu_layer = {
    .name = "selu",
    .doc = "Scaled elu, with the constants of self-normalizing networks.",
    .emit = emit<Unary::selu>,
};

extern const LayerDef mish_layer = {
    .name = "mish", .doc = "Computes x * tanh(softplus(x)).", .emit = emit<Unary::mish>};

extern const LayerDef hardswish_layer = {
    .name = "hardswish",
    .doc = "Computes x * min(max(x + 3, 0), 6) / 6 (MobileNetV3).",
    .emit = emit<Unary::hardswish>,
};

extern const LayerDef hardsigmoid_layer = {
    .name = "hardsigmoid",
    .doc = "Computes min(max(x / 6 + 1/2, 0), 1).",
    .emit = emit<Unary::hardsigmoid>,
};

extern const LayerDef softsign_layer = {
    .name = "softsign", .doc = "Computes x / (1 + |x|).", .emit = emit<Unary::softsign>};

extern const LayerDef log_sigmoid_layer = {
    .name = "log_sigmoid", .doc = "Logarithm of sigmoid(x).", .emit = emit<Unary::log_sigmoid>};

extern const LayerDef sin_layer = {.name = "sin", .doc = "Sine of x in radians.", .emit = emit<Unary::sin>};
extern const LayerDef cos_layer = {.name = "cos", .doc = "Cosine of x in radians.", .emit = emit<Unary::cos>};

extern const OpFamily unary_family = {
    .ops = {&silu_op,
            &silu_grad_op,
            &leaky_relu_op,
            &leaky_relu_grad_op,
            &softplus_op,
            &softplus_grad_op,
            &clip_op,
            &clip_grad_op,
            &abs_op,
            &abs_grad_op,
            &exp_op,
            &exp_grad_op,
            &log_op,
            &log_grad_op,
            &sqrt_op,
            &sqrt_grad_op,
            &pow_op,
            &pow_grad_op,
            &scale_op,
            &softcap_op,
            &softcap_grad_op,
            &quick_gelu_op,
            &quick_gelu_grad_op,
            &elu_op,
            &elu_grad_op,
            &selu_op,
            &selu_grad_op,
            &mish_op,
            &mish_grad_op,
            &hardswish_op,
            &hardswish_grad_op,
            &hardsigmoid_op,
            &hardsigmoid_grad_op,
            &softsign_op,
            &softsign_grad_op,
            &log_sigmoid_op,
            &log_sigmoid_grad_op,
            &sin_op,
            &sin_grad_op,
            &cos_op,
            &cos_grad_op},
    .layers = {&silu_layer,      &leaky_relu_layer,  &softplus_layer, &clip_layer,        &abs_layer,
               &exp_layer,       &log_layer,         &sqrt_layer,     &pow_layer,         &scale_layer,
               &softcap_layer,   &quick_gelu_layer,  &elu_layer,      &selu_layer,        &mish_layer,
               &hardswish_layer, &hardsigmoid_layer, &softsign_layer, &log_sigmoid_layer, &sin_layer,
               &cos_layer}};

}  // namespace trainctl
