// c = a + b, a - b, a * b, a / b, max(a, b) and min(a, b) with numpy broadcasting. A gradient is summed to the shape of
// its operand. larger, for the gradients of the last two: 1 where a > b, 1/2 where a = b, else 0.
#include "engine/ops/elementwise.h"
#include "engine/ops/examples.h"
#include "engine/ops/expect.h"
#include "engine/ops/grad_builder.h"
#include "engine/ops/layer_def.h"
#include "engine/ops/op_family.h"

namespace trainctl {
namespace {

/// Sets the gradient of input i: `whole`, which has the shape of the output, summed over the dims in which the input is
/// broadcast.
void pass_broadcast_grad(GradBuilder& g, int i, TensorId whole) {
  const Shape shape = g.shape(g.in(i));
  if (shape == g.shape(g.out())) {
    g.pass_in_grad(i, whole);
  } else {
    g.set_in_grad(i, "sum_to", {whole}, {{"shape", shape}});
  }
}

/// da = dy / b, db = -dy / b * y
void backward_of_div(GradBuilder& g) {
  if (!g.needs_in_grad(0) && !g.needs_in_grad(1)) return;
  const TensorId quotient = g.emit("div", {g.out_grad(), g.in(1)}, {}, {g.out()}, "quotient")[0];
  if (g.needs_in_grad(0)) pass_broadcast_grad(g, 0, quotient);
  if (!g.needs_in_grad(1)) return;
  const TensorId product = g.emit("mul", {quotient, g.out()}, {}, {g.out()}, "product")[0];
  set_broadcast_grad(g, 1, "scale", {product}, {{"factor", -1.0}});
}

/// The gradient of max (`largest`) and min: dy goes to the operand that was chosen. Equal operands get half each, as in
/// PyTorch.
void backward_of_choice(GradBuilder& g, bool largest) {
  for (int i = 0; i < 2; ++i) {
    if (!g.needs_in_grad(i)) continue;
    const int above = largest ? i : 1 - i;
    const TensorId chosen =
        g.emit("larger", {g.in(above), g.in(1 - above)}, {}, {g.out()}, i == 0 ? "first" : "second")[0];
    set_broadcast_grad(g, i, "mul", {g.out_grad(), chosen});
  }
}

KernelExample example_of(const char* what) {
  return {.what = what, .inputs = {{example::kMatrix}, {example::kMatrix}}};
}

}  // namespace

extern const OpDef add_op = {
    .name = "add",
    .infer = [](Infos in, const Attrs&) { return infer_broadcast("add", in, 2); },
    .rule = broadcast_rule,
    .backward =
        [](GradBuilder& g) {
          for (int i = 0; i < 2; ++i) pass_broadcast_grad(g, i, g.out_grad());
        },
    .kernel = {.name = "add",
               .as_epilogue = [](const Attrs&) { return EpilogueRole{EpilogueStep::residual}; },
               .element = [](const Attrs&) -> std::string { return "+"; },
               .channels_last = elementwise_images,
               .cost = elementwise_cost<1>,
               .example = [] { return example_of("c = a + b, broadcast"); }},
};

extern const OpDef sub_op = {
    .name = "sub",
    .infer = [](Infos in, const Attrs&) { return infer_broadcast("sub", in, 2); },
    .rule = broadcast_rule,
    .backward =
        [](GradBuilder& g) {
          pass_broadcast_grad(g, 0, g.out_grad());
          set_broadcast_grad(g, 1, "scale", {g.out_grad()}, {{"factor", -1.0}});
        },
    .kernel = {.name = "sub",
               .element = [](const Attrs&) -> std::string { return "-"; },
               .channels_last = elementwise_images,
               .cost = elementwise_cost<1>,
               .example = [] { return example_of("c = a - b, broadcast"); }},
};

extern const OpDef mul_op = {
    .name = "mul",
    .infer = [](Infos in, const Attrs&) { return infer_broadcast("mul", in, 2); },
    .rule = broadcast_rule,
    .backward =
        [](GradBuilder& g) {
          for (int i = 0; i < 2; ++i) set_broadcast_grad(g, i, "mul", {g.out_grad(), g.in(1 - i)});
        },
    .kernel = {.name = "mul",
               .element = [](const Attrs&) -> std::string { return "*"; },
               .channels_last = elementwise_images,
               .cost = elementwise_cost<1>,
               .example = [] { return example_of("c = a * b, broadcast"); }},
};

extern const OpDef div_op = {
    .name = "div",
    .infer = [](Infos in, const Attrs&) { return infer_broadcast("div", in, 2); },
    .rule = broadcast_rule,
    .backward = backward_of_div,
    .kernel = {.name = "div",
               .element = [](const Attrs&) -> std::string { return "/"; },
               .channels_last = elementwise_images,
               .cost = elementwise_cost<4>,
               .example = [] { return example_of("c = a / b, broadcast"); }},
};

extern const OpDef maximum_op = {
    .name = "maximum",
    .infer = [](Infos in, const Attrs&) { return infer_broadcast("maximum", in, 2); },
    .rule = broadcast_rule,
    .backward = [](GradBuilder& g) { backward_of_choice(g, true); },
    .kernel = {.name = "maximum",
               .channels_last = elementwise_images,
               .cost = elementwise_cost<1>,
               .example = [] { return example_of("c = max(a, b), broadcast"); }},
};

extern const OpDef minimum_op = {
    .name = "minimum",
    .infer = [](Infos in, const Attrs&) { return infer_broadcast("minimum", in, 2); },
    .rule = broadcast_rule,
    .backward = [](GradBuilder& g) { backward_of_choice(g, false); },
    .kernel = {.name = "minimum",
               .channels_last = elementwise_images,
               .cost = elementwise_cost<1>,
               .example = [] { return example_of("c = min(a, b), broadcast"); }},
};

extern const OpDef larger_op = {
    .name = "larger",
    .infer = [](Infos in, const Attrs&) { return infer_broadcast("larger", in, 2); },
    .kernel = {.name = "larger",
               .channels_last = elementwise_images,
               .cost = elementwise_cost<2>,
               .example = [] { return example_of("c = 1 where a > b, 1/2 where a = b, else 0, broadcast"); }},
};

extern const LayerDef add_layer = {
    .name = "add",
    .doc = "Sum of two inputs, with broadcasting as in NumPy.",
    .min_inputs = 2,
    .max_inputs = 2,
    .emit = [](LayerContext& layer) { return layer.emit("add"); },
};

extern const LayerDef sub_layer = {
    .name = "sub",
    .doc = "The first input minus the second, with broadcasting as in NumPy.",
    .min_inputs = 2,
    .max_inputs = 2,
    .emit = [](LayerContext& layer) { return layer.emit("sub"); },
};

extern const LayerDef mul_layer = {
    .name = "mul",
    .doc = "Element-wise product of two inputs, with broadcasting as in NumPy.",
    .min_inputs = 2,
    .max_inputs = 2,
    .emit = [](LayerContext& layer) { return layer.emit("mul"); },
};

extern const LayerDef div_layer = {
    .name = "div",
    .doc = "The first input divided by the second element by element, with broadcasting as in NumPy.",
    .min_inputs = 2,
    .max_inputs = 2,
    .emit = [](LayerContext& layer) { return layer.emit("div"); },
};

extern const LayerDef maximum_layer = {
    .name = "maximum",
    .doc = "The larger of two inputs element by element, with broadcasting as in NumPy.",
    .min_inputs = 2,
    .max_inputs = 2,
    .emit = [](LayerContext& layer) { return layer.emit("maximum"); },
};

extern const LayerDef minimum_layer = {
    .name = "minimum",
    .doc = "The smaller of two inputs element by element, with broadcasting as in NumPy.",
    .min_inputs = 2,
    .max_inputs = 2,
    .emit = [](LayerContext& layer) { return layer.emit("minimum"); },
};

extern const OpFamily binary_family = {
    .ops = {&add_op, &sub_op, &mul_op, &div_op, &maximum_op, &minimum_op, &larger_op},
    .layers = {&add_layer, &sub_layer, &mul_layer, &div_layer, &maximum_layer, &minimum_layer}};

}  // namespace trainctl
