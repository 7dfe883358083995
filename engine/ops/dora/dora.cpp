// DoRA (https://arxiv.org/abs/2402.09353): a product x W^T with an adapter, whose rows have trained norms m.
//
//   dora_squares  w [n, k], a [r, k], b [n, r] -> [n] f32: for each row, the sum over k of (w + factor * b a)^2
//   dora_scale    m [n], squares [n] f32       -> [n]: m / sqrt(squares), of the type of m, or f32 with the attr f32
//   y = c * (x W^T + factor * B (A x)) + bias,  c = dora_scale(m, dora_squares(W, A, B))
//
// No gradient flows through the squares, as in PEFT. Cutting k leaves the squares partial sums.
#include <fmt/format.h>

#include "engine/ops/elementwise.h"
#include "engine/ops/examples.h"
#include "engine/ops/expect.h"
#include "engine/ops/grad_builder.h"
#include "engine/ops/layer_def.h"
#include "engine/ops/op_family.h"

namespace trainctl {
namespace {

TensorId parameter_of(const LayerContext& layer, const std::string& owner, const char* name) {
  const auto found = layer.graph.find_tensor(owner + "." + name);
  if (!found) shape_error(fmt::format("there is no layer '{}' with a {}", owner, name));
  return *found;
}

TensorId weight_of(LayerContext& layer, const std::string& owner) {
  return layer.builder.unpacked(parameter_of(layer, owner, "weight"));
}

LayerOutputs emit_dora(LayerContext& layer) {
  LayerBuilder& b = layer.builder;
  const std::string product_layer = layer.attrs.text("layer"), shared = layer.attrs.text("share");
  const std::string owner = shared.empty() ? product_layer : shared;
  const TensorId w = weight_of(layer, owner), lora_a = weight_of(layer, layer.attrs.text("a")),
                 lora_b = weight_of(layer, layer.attrs.text("b"));
  const TensorId squares =
      b.emit("dora_squares", {w, lora_a, lora_b}, {{"factor", layer.attrs.number("factor")}}, "squares")[0];
  const TensorId norms =
      b.parameter("magnitude", {b.shape(w)[0]}, {.kind = Init::Kind::row_norms, .value = 1, .of = owner + ".weight"});
  const TensorId scale = b.emit("dora_scale", {norms, squares}, {}, "scale")[0];
  const auto bias = layer.attrs.flag("bias") ? layer.graph.find_tensor(product_layer + ".bias") : std::nullopt;
  if (!bias) return b.emit("mul", {layer.inputs[0], scale})[0];
  const TensorId scaled = b.emit("mul", {layer.inputs[0], scale}, {}, "scaled")[0];
  const TensorId shift = b.emit("sub", {*bias, b.emit("mul", {*bias, scale}, {}, "scaled_bias")[0]}, {}, "shift")[0];
  return b.emit("add", {scaled, shift})[0];
}

}  // namespace

extern const OpDef dora_squares_op = {
    .name = "dora_squares",
    .infer = [](Infos in, const Attrs&) -> std::vector<TensorInfo> {
      expect_inputs("dora_squares", in, 3, 3);
      expect_floats("dora_squares", in);
      for (const TensorInfo& input : in)
        if (input.shape.size() != 2)
          shape_error(fmt::format("dora_squares expects matrices, but got {}", to_string(input)));
      const Shape &w = in[0].shape, &a = in[1].shape;
      expect_shape("dora_squares", "A", in[1], {a[0], w[1]});
      expect_shape("dora_squares", "B", in[2], {w[0], a[0]});
      return {{{w[0]}, DType::f32}};
    },
    .rule = [](Infos, const Attrs&) -> RuleText {
      return {.text = "nk,rk,nr->n",
              .uncuttable = "r",
              .why_not = "the square of a sum over the adapter's rank needs all of it"};
    },
    .kernel = {.name = "dora_squares",
               .accumulates = 1,
               .cost =
                   [](Infos in, Infos out, const Attrs&) {
                     const double elements = static_cast<double>(num_elements(in[0].shape));
                     return Cost{.flops = elements * (2.0 * static_cast<double>(in[1].shape[0]) + 3),
                                 .bytes = static_cast<double>(bytes_of(in[0]) + bytes_of(in[1]) + bytes_of(in[2]) +
                                                              bytes_of(out[0]))};
                   },
               .example =
                   [] {
                     return KernelExample{.what = "sum over k of (W + factor B A)^2; inputs W, A, B",
                                          .inputs = {{{1024, 1024}}, {{16, 1024}}, {{1024, 16}}},
                                          .attrs = {{"factor", 0.5}}};
                   }},
};

extern const OpDef dora_scale_op = {
    .name = "dora_scale",
    .infer = [](Infos in, const Attrs& attrs) -> std::vector<TensorInfo> {
      expect_inputs("dora_scale", in, 2, 2);
      for (const TensorInfo& input : in) expect_floats("dora_scale", {&input, 1});
      expect_shape("dora_scale", "the squares", in[1], in[0].shape);
      return {{in[0].shape, attrs.flag("f32") ? DType::f32 : in[0].dtype}};
    },
    .rule = [](Infos in, const Attrs&) -> RuleText {
      const std::string dims = letters(in[0].shape.size());
      return {dims + "," + dims + "->" + dims};
    },
    .backward =
        [](GradBuilder& g) {
          Attrs attrs;
          if (g.is_parameter(g.in(0)) && g.dtype(g.in(0)) != DType::f32) attrs.set("f32", true);
          g.set_in_grad(0, "dora_scale", {g.out_grad(), g.in(1)}, attrs);
        },
    .no_gradient = 2,
    .kernel = {.name = "dora_scale",
               .cost = elementwise_cost<6>,
               .example =
                   [] {
                     using namespace example;
                     return KernelExample{.what = "m / sqrt(s); inputs m, s",
                                          .inputs = {{kFlat}, f32(kFlat)},
                                          .optional = {{"f32", true}}};
                   }},
};

extern const LayerDef dora_layer = {
    .name = "dora",
    .doc =
        "Trains the norms of the rows of an adapted weight (DoRA). Input: the sum of a dense layer's output and its "
        "adapter's.",
    .fields = {text("layer", "The adapted dense layer.").required(),
               text("a", "The adapter's first dense layer.").required(),
               text("b", "The adapter's second dense layer.").required(),
               text("share", "The layer whose weight the dense layer shares, if it has no weight of its own."),
               flag("bias", true,
                    "Whether the input contains the dense layer's bias, if it has one. The bias is not scaled."),
               number("factor", "Factor by which the adapter's product is multiplied.").defaults(1.0)},
    .emit = emit_dora,
};

extern const OpFamily dora_family = {.ops = {&dora_squares_op, &dora_scale_op}, .layers = {&dora_layer}};

}  // namespace trainctl
