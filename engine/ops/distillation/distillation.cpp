// Distillation from logits of a teacher that are stored with the samples (https://arxiv.org/abs/1503.02531). logits
// [.., c], label i32 [..], teacher f32 [.., k], ids i32 [.., k]: the classes of the teacher's logits, or without ids k
// = c and all classes. With T = temperature and a = alpha, a row's loss is
//
//   (1 - a) * -log softmax(x)[label] + a * T^2 * sum_j p_j * (log p_j - log softmax(x / T)[id_j])
//   p = softmax(teacher / T)
//
// loss[1] = scale * their sum. Rows whose label is ignore_index count in neither term.
#include <fmt/format.h>

#include "engine/ops/elementwise.h"
#include "engine/ops/examples.h"
#include "engine/ops/expect.h"
#include "engine/ops/grad_builder.h"
#include "engine/ops/loss_def.h"
#include "engine/ops/op_family.h"

namespace trainctl {
namespace {

/// Checks the shapes and types of the logits, the labels, and the logits and ids of the teacher.
void expect_distillation(std::string_view op, Infos in) {
  expect_inputs(op, in, 3, 4);
  expect_floats(op, in.first(1));
  expect_ndim(op, in[0], 2);
  const Shape rows(in[0].shape.begin(), in[0].shape.end() - 1);
  expect_shape(op, "the label", in[1], rows);
  if (in[1].dtype != DType::i32) shape_error(fmt::format("{}: the label is f32, expected i32", op));
  Shape wanted = rows;
  wanted.push_back(in.size() == 3 ? in[0].shape.back() : in[2].shape.back());
  if (in[2].dtype != DType::f32)
    shape_error(fmt::format("{}: teacher_logits are {}, expected f32", op, to_string(in[2])));
  if (in[2].shape != wanted)
    shape_error(fmt::format(
        "{}: teacher_logits are {}, expected {}{}", op, to_string(in[2]), to_string(wanted),
        in.size() == 3 ? ": the logits of all classes, because no field teacher_ids says which classes they belong to"
                       : ""));
  if (in.size() == 3) return;
  if (in[3].dtype != DType::i32) shape_error(fmt::format("{}: teacher_ids are {}, expected i32", op, to_string(in[3])));
  if (in[3].shape != wanted)
    shape_error(
        fmt::format("{}: teacher_ids are {}, but teacher_logits are {}", op, to_string(in[3]), to_string(in[2])));
}

KernelExample distillation_example(const char* what) {
  using namespace example;
  return {.what = what,
          .inputs = {{kMatrix}, ids(kColumn), f32({kRows, 16}), ids({kRows, 16})},
          .attrs = {{"scale", 1e-6}, {"temperature", 2.0}, {"alpha", 0.5}},
          .below = columns_of_first};
}

/// Scratch memory in bytes: the loss of each row.
int64_t distillation_scratch(const std::vector<Shape>& in, const std::vector<Shape>&) {
  return num_elements(in[1]) * static_cast<int64_t>(sizeof(double));
}

RowOperands rows_of_distillation(unsigned outputs) { return {15, outputs}; }

}  // namespace

extern const OpDef distillation_grad_op;

extern const KernelDef distillation_with_grad_kernel = {
    .name = "distillation_with_grad",
    .accumulates = 1,
    .in_place = InPlace::last_on_first,
    .row_operands = [](const Attrs&) { return rows_of_distillation(2); },
    .most_cuda_scratch = distillation_scratch,
    .example =
        [] {
          KernelExample shown =
              distillation_example("loss and gradient in one pass; inputs logits, labels, teacher, ids");
          shown.outputs = [](Infos in, const Attrs&, DType) -> std::vector<TensorInfo> {
            expect_distillation("distillation_with_grad", in);
            return {{{1}}, in[0]};
          };
          return shown;
        },
};

/// (logits, label, teacher, ids) -> dlogits
extern const OpDef distillation_grad_op = {
    .name = "distillation_grad",
    .infer = [](Infos in, const Attrs&) -> std::vector<TensorInfo> {
      expect_distillation("distillation_grad", in);
      return {in[0]};
    },
    .kernel = {.name = "distillation_grad",
               .row_operands = [](const Attrs&) { return rows_of_distillation(1); },
               .cost = elementwise_cost<28>,
               .example = [] { return distillation_example("gradient; inputs logits, labels, teacher, ids"); }},
};

extern const OpDef distillation_op = {
    .name = "distillation",
    .infer = [](Infos in, const Attrs&) -> std::vector<TensorInfo> {
      expect_distillation("distillation", in);
      return {{{1}}};
    },
    .rule = [](Infos in, const Attrs&) -> RuleText {
      const std::string rows = letters(in[1].shape.size(), "ck");
      const char k = in.size() == 3 ? 'c' : 'k';
      std::string text = rows + "c," + rows + "," + rows + k;
      if (in.size() == 4) text += "," + rows + k;
      return {.text = text + "->()",
              .uncuttable = in.size() == 3 ? "c" : "ck",
              .why_not = "a row of the teacher's logits is compared with the softmax of the whole row"};
    },
    .backward =
        [](GradBuilder& g) {
          std::vector<TensorId> inputs;
          for (int i = 0; i < g.num_inputs(); ++i) inputs.push_back(g.in(i));
          g.set_in_grad(0, "distillation_grad", inputs, g.attrs());
        },
    .no_gradient = 14,
    .kernel = {.name = "distillation",
               .accumulates = 1,
               .loss_grad = &distillation_grad_op.kernel,
               .loss_with_grad = &distillation_with_grad_kernel,
               .row_operands = [](const Attrs&) { return rows_of_distillation(0); },
               .cost = reduction_cost<24>,
               .most_cuda_scratch = distillation_scratch,
               .example = [] { return distillation_example("loss; inputs logits, labels, teacher, ids"); }},
};

extern const LossDef distillation_loss = {
    .name = "distillation",
    .doc =
        "(1 - alpha) * mean cross-entropy with integer labels + alpha * temperature^2 * mean KL divergence of the "
        "softmax "
        "of logits / temperature from that of a teacher, whose logits are the sample field teacher_logits: all "
        "classes, "
        "or those of the field teacher_ids",
    .fields = {number("temperature",
                      "Temperature by which the logits of the network and the teacher are divided, so that small "
                      "probabilities count more.")
                   .defaults(2.0)
                   .above(0),
               number("alpha", "Weight of the KL divergence; the cross-entropy has the weight 1 - alpha.")
                   .defaults(0.5)
                   .at_least(0)
                   .at_most(1),
               integer("ignore_index",
                       "Rows with this label are ignored. The mean is over all other rows, or 0 if there are none.")
                   .at_least(-2147483648.0)
                   .at_most(2147483647.0)},
    .op = &distillation_op,
    .labels_are_classes = true,
    .reads = {{"teacher_logits"}, {.name = "teacher_ids", .is_integer = true, .is_optional = true}},
};

extern const OpFamily distillation_family = {.ops = {&distillation_op, &distillation_grad_op},
                                             .kernels = {&distillation_with_grad_kernel},
                                             .losses = {&distillation_loss}};

}  // namespace trainctl
