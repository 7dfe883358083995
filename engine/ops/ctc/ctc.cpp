// The loss ctc, as torch.nn.functional.ctc_loss of log_softmax(prediction); ctc_lattice.h has the recursion.
//
//   ctc       logits [n, t, c], labels i32 [n, s], (steps i32 [n]), (label lengths i32 [n]) -> [n] f32:
//             -log of the probability of the labels, with attr by_length divided by their number
//   ctc_grad  the same inputs, dy [n] -> dlogits = dy (softmax(logits) - the share of paths that emit c at step t)
//
// attrs blank, zero_infinity (labels that no path emits have loss 0, else infinity), input_lengths, label_lengths:
// which of the last inputs there are. The loss sums the rows with mean_value (pair_loss).
#include <fmt/format.h>

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

size_t lengths_given(const Attrs& attrs) {
  return (attrs.flag("input_lengths") ? 1u : 0u) + (attrs.flag("label_lengths") ? 1u : 0u);
}

/// Checks the shapes and types of the inputs of ctc, which `more` further inputs follow.
void expect_ctc_inputs(std::string_view op, Infos in, const Attrs& attrs, size_t more) {
  const size_t inputs = 2 + lengths_given(attrs);
  expect_inputs(op, in, inputs + more, inputs + more);
  expect_floats(op, in.first(1));
  if (in[0].shape.size() != 3)
    shape_error(fmt::format("{} needs a prediction [n, steps, classes], but got {}", op, to_string(in[0])));
  if (in[1].shape.size() != 2 || in[1].shape[0] != in[0].shape[0] || in[1].dtype != DType::i32)
    shape_error(fmt::format("{}: the labels are {}, expected [{}, length] i32", op, to_string(in[1]), in[0].shape[0]));
  for (size_t i = 2; i < inputs; ++i) {
    expect_shape(op, "the lengths", in[i], {in[0].shape[0]});
    if (in[i].dtype != DType::i32) shape_error(fmt::format("{}: the lengths are f32, expected i32", op));
  }
  const int64_t blank = attrs.integer("blank");
  if (blank >= in[0].shape[2])
    throw ShapeError(fmt::format("the blank is class {}, but the prediction {} has {} classes", blank,
                                 to_string(in[0].shape), in[0].shape[2]),
                     "blank");
}

/// The cost: each state of each step is visited once forwards and once backwards, and the softmax is computed.
Cost ctc_cost(Infos in, Infos out, const Attrs&) {
  Cost cost = traffic_cost(in, out, 0);
  const auto states = static_cast<double>(2 * in[1].shape[1] + 1);
  cost.flops =
      static_cast<double>(in[0].shape[0] * in[0].shape[1]) * (20 * states + 12 * static_cast<double>(in[0].shape[2]));
  return cost;
}

/// Scratch memory in bytes. Each row of the batch needs alpha of all steps, the sums of e^logit, five rows of states,
/// and the order of equal labels (ctc_cuda.cu).
int64_t lattice_scratch(const std::vector<Shape>& inputs, const std::vector<Shape>&) {
  const Shape &logits = inputs[0], &labels = inputs[1];
  return 8 * logits[0] * ((2 * labels[1] + 1) * (logits[1] + 5) + logits[1]);
}

KernelExample ctc_example(const char* what, bool is_gradient) {
  using namespace example;
  KernelExample shown{.what = what,
                      .inputs = {{{32, 128, 64}}, ids({32, 32})},
                      .attrs = {{"blank", int64_t{63}}},
                      .optional = {{"zero_infinity", true}, {"by_length", true}}};
  if (is_gradient) shown.inputs.push_back(f32({32}));
  return shown;
}

/// Reshapes a sample field that has one number per sample to [n].
TensorId row_numbers(LayerBuilder& b, TensorId field, const std::string& name) {
  const Shape& shape = b.shape(field);
  if (shape.size() == 1) return field;
  if (num_elements(shape) != shape[0])
    shape_error(fmt::format("ctc: the sample field {} is {}, expected one number per sample", name, to_string(shape)));
  return b.emit("reshape", {field}, {{"shape", Shape{shape[0]}}}, name)[0];
}

/// The layer before the loss: reads the labels and lengths of the samples, and computes the loss of each row.
TensorId ctc_rows(LossLayers& layers, const LossInputs& inputs, const Attrs& attrs) {
  LayerBuilder& b = layers.add("ctc");
  Attrs of_op{{"blank", attrs.integer("blank")}, {"by_length", !inputs.sums}};
  if (attrs.flag("zero_infinity")) of_op.set("zero_infinity", true);
  std::vector<TensorId> operands = {inputs.outputs[0], inputs.label};
  static constexpr const char* kLengths[] = {"input_lengths", "label_lengths"};
  for (size_t i = 0; i < 2; ++i) {
    if (inputs.fields[i] < 0) continue;
    operands.push_back(row_numbers(b, inputs.fields[i], kLengths[i]));
    of_op.set(kLengths[i], true);
  }
  const TensorId rows = b.emit("ctc", operands, of_op)[0];
  b.finish({rows});
  return rows;
}

}  // namespace

/// (the inputs of ctc, dy) -> dlogits
extern const OpDef ctc_grad_op = {
    .name = "ctc_grad",
    .infer = [](Infos in, const Attrs& attrs) -> std::vector<TensorInfo> {
      expect_ctc_inputs("ctc_grad", in, attrs, 1);
      expect_shape("ctc_grad", "dy", in.back(), {in[0].shape[0]});
      return {in[0]};
    },
    .kernel = {.name = "ctc_grad",
               .cost = ctc_cost,
               .most_cuda_scratch = lattice_scratch,
               .example = [] { return ctc_example("gradient; inputs logits, labels, dy", true); }},
};

extern const OpDef ctc_op = {
    .name = "ctc",
    .infer = [](Infos in, const Attrs& attrs) -> std::vector<TensorInfo> {
      expect_ctc_inputs("ctc", in, attrs, 0);
      return {{{in[0].shape[0]}, DType::f32}};
    },
    .rule = [](Infos in, const Attrs&) -> RuleText {
      std::string text = "atc,as";
      for (size_t i = 2; i < in.size(); ++i) text += ",a";
      return {.text = text + "->a",
              .uncuttable = "tcs",
              .why_not = "the probability of a label depends on all steps and all classes"};
    },
    .backward =
        [](GradBuilder& g) {
          std::vector<TensorId> inputs;
          for (int i = 0; i < g.num_inputs(); ++i) inputs.push_back(g.in(i));
          inputs.push_back(g.out_grad());
          g.set_in_grad(0, "ctc_grad", inputs, g.attrs());
        },
    .kernel = {.name = "ctc",
               .cost = ctc_cost,
               .most_cuda_scratch = lattice_scratch,
               .example =
                   [] { return ctc_example("-log of the probability of labels; inputs logits, labels", false); }},
};

extern const LossDef ctc_loss = {
    .name = "ctc",
    .doc =
        "connectionist temporal classification of a prediction [n, steps, classes], logits, and labels [n, length]: "
        "mean over the rows of -log of the probability of the labels, divided by their number; sum: the sum, not "
        "divided",
    .fields = {integer("blank", "Index of the blank class.").defaults(int64_t{0}).at_least(0).at_most(kMaxSize),
               flag("zero_infinity", false,
                    "Whether a row with more labels than its number of steps allows has a loss of 0 and no gradient. "
                    "false: its loss is infinite.")},
    .op = &mean_value_op,
    .labels_are_classes = true,
    .label_use = LabelUse::sequence,
    .compose = ctc_rows,
    .reads = {{.name = "input_lengths", .is_integer = true, .is_optional = true},
              {.name = "label_lengths", .is_integer = true, .is_optional = true}},
};

extern const OpFamily ctc_family = {.ops = {&ctc_op, &ctc_grad_op}, .losses = {&ctc_loss}};

}  // namespace trainctl
