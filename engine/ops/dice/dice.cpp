// The loss dice of a prediction p [n, .., c], probabilities of c classes, and labels g, classes i32 [n, ..] or shares
// f32 [n, .., c]: the mean over rows and classes of
//
//   1 - (2 sum p g + smooth) / (sum p + sum g + smooth)       squared: sum p^2 + sum g^2 in the denominator
//
//   overlap       (p, g) -> sum p g [n, c] f32, sum p + sum g [n, c] f32, over all dims between the first and the last
//   overlap_grad  (p, g, d1 [n, c], d2 [n, c]) -> dp = d1 g + d2, with attr squared d1 g + 2 d2 p; attr only has the
//                 number of the sum whose gradient there is, if it is one
//
// Both sums are linear in the dims between, so that a plan may cut them.
#include <fmt/format.h>

#include <algorithm>

#include "engine/ops/elementwise.h"
#include "engine/ops/examples.h"
#include "engine/ops/expect.h"
#include "engine/ops/grad_builder.h"
#include "engine/ops/layer_builder.h"
#include "engine/ops/loss_def.h"
#include "engine/ops/op_family.h"

namespace trainctl {

extern const OpDef mean_value_op;

namespace {

void expect_overlap_inputs(std::string_view op, Infos in, size_t inputs) {
  expect_inputs(op, in, inputs, inputs);
  expect_floats(op, in.first(1));
  expect_ndim(op, in[0], 2);
  if (in[1].dtype == DType::i32)
    expect_shape(op, "the label", in[1], Shape(in[0].shape.begin(), in[0].shape.end() - 1));
  else
    expect_shape(op, "the label", in[1], in[0].shape);
  for (size_t i = 2; i < inputs; ++i)
    expect_shape(op, "the gradient", in[i], {in[0].shape.front(), in[0].shape.back()});
}

/// Two doubles per class of each part of a row; at most 64 parts (dice_cuda.cu).
int64_t overlap_scratch(const std::vector<Shape>& inputs, const std::vector<Shape>&) {
  const Shape& p = inputs[0];
  const int64_t pixels = num_elements(p) / std::max<int64_t>(1, p.front() * p.back());
  return 16 * p.front() * p.back() * std::min<int64_t>(64, pixels / 4096 + 1);
}

KernelExample overlap_example(const char* what, bool is_gradient) {
  using namespace example;
  KernelExample shown{.what = what,
                      .inputs = {{{16, 4096, 64}}, ids({16, 4096})},
                      .optional = {{"squared", true}},
                      .below = columns_of_first};
  if (is_gradient) shown.inputs.insert(shown.inputs.end(), {f32({16, 64}), f32({16, 64})});
  return shown;
}

TensorId dice_node(LayerBuilder& b, const char* op, std::vector<TensorId> inputs, Attrs attrs, const char* name) {
  return b.emit(op, std::move(inputs), std::move(attrs), name)[0];
}

/// The nodes of the loss: 1 - (2 * overlap + smooth) / (sizes + smooth) per sample and class, from `sums` of the op
/// overlap.
TensorId dice_terms(LossLayers& layers, const LossInputs& inputs, const Attrs& attrs) {
  LayerBuilder& b = layers.add("dice");
  const TensorId x = inputs.outputs[0];
  const auto ndim = static_cast<int64_t>(b.shape(x).size());
  const std::string activation = attrs.text("activation");
  TensorId p = x;
  if (activation == "softmax") p = dice_node(b, "softmax", {x}, {{"dim", ndim - 1}}, "probabilities");
  if (activation == "sigmoid") p = dice_node(b, "sigmoid", {x}, {}, "probabilities");
  Attrs of_overlap;
  if (attrs.flag("squared")) of_overlap.set("squared", true);
  const std::vector<TensorId> sums = b.emit("overlap", {p, inputs.label}, of_overlap, "sums");
  const double smooth = attrs.number("smooth");
  const TensorId above = dice_node(b, "scale", {sums[0]}, {{"factor", 2.0}, {"shift", smooth}}, "above");
  const TensorId below = dice_node(b, "scale", {sums[1]}, {{"factor", 1.0}, {"shift", smooth}}, "below");
  const TensorId ratio = dice_node(b, "div", {above, below}, {}, "ratio");
  const bool background = attrs.flag("background");
  TensorId loss = dice_node(b, "scale", {ratio}, {{"factor", -1.0}, {"shift", 1.0}}, background ? "" : "losses");
  if (!background) {
    const Shape& shape = b.shape(loss);
    if (shape[1] < 2)
      throw ShapeError("background: false leaves no class, because the prediction has only one", "background");
    loss = dice_node(b, "slice", {loss}, {{"begin", Ints{0, 1}}, {"size", Ints{shape[0], shape[1] - 1}}}, "");
  }
  b.finish({loss});
  return loss;
}

}  // namespace

/// (p, label, d1, d2) -> dp
extern const OpDef overlap_grad_op = {
    .name = "overlap_grad",
    .infer = [](Infos in, const Attrs& attrs) -> std::vector<TensorInfo> {
      expect_overlap_inputs("overlap_grad", in, attrs.has("only") ? 3 : 4);
      return {in[0]};
    },
    .kernel = {.name = "overlap_grad",
               .cost = elementwise_cost<3>,
               .example = [] { return overlap_example("gradient; inputs p, labels, gradients of both sums", true); }},
};

extern const OpDef overlap_op = {
    .name = "overlap",
    .infer = [](Infos in, const Attrs&) -> std::vector<TensorInfo> {
      expect_overlap_inputs("overlap", in, 2);
      const Shape sums = {in[0].shape.front(), in[0].shape.back()};
      return {{sums, DType::f32}, {sums, DType::f32}};
    },
    .rule = [](Infos in, const Attrs&) -> RuleText {
      const std::string rows = letters(in[0].shape.size() - 1, "c"), sums = rows.substr(0, 1) + "c";
      const std::string label = in[1].dtype == DType::i32 ? rows : rows + "c";
      return {rows + "c," + label + "->" + sums + "," + sums};
    },
    .backward =
        [](GradBuilder& g) {
          std::vector<TensorId> inputs = {g.in(0), g.in(1)};
          for (const int sum : {0, 1})
            if (g.has_out_grad(sum)) inputs.push_back(g.out_grad(sum));
          Attrs attrs = g.attrs();
          if (inputs.size() == 3) attrs.set("only", g.has_out_grad(0) ? int64_t{0} : int64_t{1});
          g.set_in_grad(0, "overlap_grad", inputs, attrs);
        },
    .no_gradient = 2,
    .kernel = {.name = "overlap",
               .cost = reduction_cost<3>,
               .most_cuda_scratch = overlap_scratch,
               .example = [] { return overlap_example("sums of p g and of p + g; inputs p, labels", false); }},
};

extern const LossDef dice_loss = {
    .name = "dice",
    .doc =
        "soft Dice loss of a prediction [n, .., classes], logits, and labels that are classes or shares of classes: "
        "mean "
        "over rows and classes of 1 - (2 sum p g + smooth) / (sum p + sum g + smooth), with sums over the dims between",
    .fields = {number("smooth", "Constant added to the numerator and the denominator.").defaults(1.0).above(0),
               text("activation",
                    "Function that turns the prediction into probabilities; none: the prediction already consists of "
                    "probabilities.")
                   .one_of({"softmax", "sigmoid", "none"})
                   .defaults(std::string("softmax")),
               flag("background", true, "Whether class 0 is included. false: class 0 is ignored."),
               flag("squared", false, "Use sums of squares in the denominator.")},
    .op = &mean_value_op,
    .labels_are_classes = true,
    .label_use = LabelUse::composed,
    .compose = dice_terms,
};

extern const OpFamily dice_family = {.ops = {&overlap_op, &overlap_grad_op}, .losses = {&dice_loss}};

}  // namespace trainctl
