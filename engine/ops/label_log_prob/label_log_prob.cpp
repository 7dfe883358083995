// The log-probability of each row's label, and the loss dpo, which compares those of two answers.
//
//   label_log_prob        logits [.., c], label i32 [..] -> [..] f32: x[label] - log sum_c e^x[c], or 0 if label < 0
//   label_log_prob_grad   logits, label, dy [..]         -> dx[c] = dy * ((c == label) - softmax(x)[c])
//
// dpo (https://arxiv.org/abs/2305.18290), for rows whose first half is the chosen and whose second half is the rejected
// answer (dataset.type preference):
//
//   margin of an answer = beta * sum over its half of (log p - log p of the reference)
//   loss                = -log sigmoid(margin of the chosen - margin of the rejected answer)
//
// which is the cross-entropy of a softmax over the two margins.
#include "engine/ops/elementwise.h"
#include "engine/ops/examples.h"
#include "engine/ops/expect.h"
#include "engine/ops/grad_builder.h"
#include "engine/ops/layer_builder.h"
#include "engine/ops/loss_def.h"
#include "engine/ops/op_family.h"

namespace trainctl {

extern const OpDef softmax_cross_entropy_op;

namespace {

void expect_log_prob_inputs(std::string_view op, Infos in, size_t inputs) {
  expect_inputs(op, in, inputs, inputs);
  expect_floats(op, in.first(1));
  expect_ndim(op, in[0], 2);
  if (in[1].dtype != DType::i32) shape_error(std::string(op) + ": the label is f32, expected i32");
  expect_shape(op, "the label", in[1], Shape(in[0].shape.begin(), in[0].shape.end() - 1));
  if (inputs == 3) expect_shape(op, "the gradient", in[2], in[1].shape);
}

KernelExample log_prob_example(const char* what, bool is_gradient) {
  using namespace example;
  KernelExample shown{.what = what, .inputs = {{kMatrix}, ids(kColumn)}, .below = columns_of_first};
  if (is_gradient) shown.inputs.push_back(f32(kColumn));
  return shown;
}

/// The margins of both answers: softmax_cross_entropy compares them, with label 0 for the chosen one. No gradient flows
/// into the reference.
TensorId dpo_margins(LayerBuilder& gains, LayerBuilder& sums, const LossRows& rows, const Attrs& attrs) {
  const double beta = attrs.number("beta");
  if (!(beta > 0)) shape_error("dpo: beta is 0, expected more than 0");
  const TensorId trained = gains.emit("label_log_prob", {rows.prediction, rows.targets}, {}, "trained")[0];
  const TensorId start = gains.emit("label_log_prob", {rows.reference, rows.targets}, {}, "reference")[0];
  const TensorId gained = gains.emit("sub", {trained, start})[0];
  gains.finish({gained});
  const Shape& shape = gains.shape(gained);
  const Ints halves{shape[0], 2, shape[1] / 2};
  const TensorId answers = sums.emit("reshape", {gained}, {{"shape", halves}}, "answers")[0];
  const TensorId margins =
      sums.emit("reduce_sum", {answers}, {{"dims", Ints{2}}, {"keep_dims", false}, {"scale", beta}})[0];
  sums.finish({margins});
  return margins;
}

}  // namespace

/// (logits, label, dy) -> dx
extern const OpDef label_log_prob_grad_op = {
    .name = "label_log_prob_grad",
    .infer = [](Infos in, const Attrs&) -> std::vector<TensorInfo> {
      expect_log_prob_inputs("label_log_prob_grad", in, 3);
      return {in[0]};
    },
    .kernel = {.name = "label_log_prob_grad",
               .cost = elementwise_cost<14>,
               .example = [] { return log_prob_example("gradient; inputs logits, labels, dy", true); }},
};

extern const OpDef label_log_prob_op = {
    .name = "label_log_prob",
    .infer = [](Infos in, const Attrs&) -> std::vector<TensorInfo> {
      expect_log_prob_inputs("label_log_prob", in, 2);
      return {{in[1].shape, DType::f32}};
    },
    .rule = [](Infos in, const Attrs&) -> RuleText {
      const std::string rows = letters(in[1].shape.size(), "c");
      return {.text = rows + "c," + rows + "->" + rows,
              .uncuttable = "c",
              .why_not = "the probability of a label depends on the logits of all classes"};
    },
    .backward =
        [](GradBuilder& g) {
          g.set_in_grad(0, "label_log_prob_grad", {g.in(0), g.in(1), g.out_grad()});
        },
    .kernel = {.name = "label_log_prob",
               .cost = reduction_cost<12>,
               .example =
                   [] { return log_prob_example("log-probability of the label; inputs logits, labels", false); }},
};

extern const LossDef dpo_loss = {
    .name = "dpo",
    .doc =
        "direct preference optimization: mean -log sigmoid(beta * how much more than the reference the network "
        "prefers the chosen to the rejected answer)",
    .fields = {text("reference", "The reference model. start: the network without its adapters.")
                   .one_of({"start"})
                   .defaults(std::string("start")),
               number("beta", "Weight of the log-probabilities.").defaults(0.1).above(0)},
    .op = &softmax_cross_entropy_op,
    .labels_are_classes = true,
    .margins = dpo_margins,
};

extern const OpFamily label_log_prob_family = {.ops = {&label_log_prob_op, &label_log_prob_grad_op},
                                               .losses = {&dpo_loss}};

}  // namespace trainctl
