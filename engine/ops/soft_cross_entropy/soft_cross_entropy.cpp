// softmax_cross_entropy of labels that are shares of all classes, as mixup and cutmix make them.
// loss[1] = scale * sum over rows of sum_c t[c] * (log(sum_c e^x[c]) - x[c]);  dlogits = scale * (softmax(x) * sum_c
// t[c] - t). logits [.., c], labels f32 [.., c]. t is the label, or with attr label_smoothing e: (1 - e) * label + e /
// c. With attr nan_is_no_label, rows whose label begins with nan are 0.
#include "engine/ops/elementwise.h"
#include "engine/ops/examples.h"
#include "engine/ops/expect.h"
#include "engine/ops/grad_builder.h"
#include "engine/ops/op_family.h"
#include "engine/ops/program_kernels.h"

namespace trainctl {
namespace {

std::vector<TensorInfo> infer_soft_cross_entropy_grad(std::string_view op, Infos in) {
  expect_inputs(op, in, 2, 2);
  for (const TensorInfo& input : in) expect_floats(op, {&input, 1});
  expect_ndim(op, in[0], 2);
  expect_shape(op, "the label", in[1], in[0].shape);
  return {in[0]};
}

KernelExample soft_cross_entropy_example(const char* what) {
  return {.what = what, .inputs = {{example::kMatrix}, example::f32(example::kMatrix)}, .attrs = {{"scale", 1e-6}}};
}

}  // namespace

extern const KernelDef soft_cross_entropy_with_grad_kernel = {
    .name = "soft_cross_entropy_with_grad",
    .accumulates = 1,
    .in_place = InPlace::last_on_first,
    .row_operands =
        [](const Attrs&) {
          return RowOperands{3, 2};
        },
    .example =
        [] {
          KernelExample shown = soft_cross_entropy_example(
              "loss and gradient in one pass; inputs logits, class "
              "probabilities");
          shown.outputs = example::loss_and_gradient;
          return shown;
        },
};

/// (logits, label) -> dlogits
extern const OpDef soft_cross_entropy_grad_op = {
    .name = "soft_cross_entropy_grad",
    .infer = [](Infos in, const Attrs&) { return infer_soft_cross_entropy_grad("soft_cross_entropy_grad", in); },
    .kernel = {.name = "soft_cross_entropy_grad",
               .row_operands =
                   [](const Attrs&) {
                     return RowOperands{3, 1};
                   },
               .cost = elementwise_cost<14>,
               .example = [] { return soft_cross_entropy_example("gradient; inputs logits, class probabilities"); }},
};

extern const OpDef soft_cross_entropy_op = {
    .name = "soft_cross_entropy",
    .infer = [](Infos in, const Attrs&) -> std::vector<TensorInfo> {
      infer_soft_cross_entropy_grad("soft_cross_entropy", in);
      return {{{1}}};
    },
    .rule = [](Infos in, const Attrs&) -> RuleText {
      const std::string dims = letters(in[0].shape.size() - 1, "c") + "c";
      return {.text = dims + "," + dims + "->()",
              .uncuttable = "c",
              .why_not = "the class probabilities of a row are compared with the softmax of the whole row"};
    },
    .backward =
        [](GradBuilder& g) {
          g.set_in_grad(0, "soft_cross_entropy_grad", {g.in(0), g.in(1)}, g.attrs());
        },
    .kernel = {.name = "soft_cross_entropy",
               .accumulates = 1,
               .loss_grad = &soft_cross_entropy_grad_op.kernel,
               .loss_with_grad = &soft_cross_entropy_with_grad_kernel,
               .row_operands =
                   [](const Attrs&) {
                     return RowOperands{3, 0};
                   },
               .cost = reduction_cost<14>,
               .example = [] { return soft_cross_entropy_example("loss; inputs logits, class probabilities"); }},
};

extern const OpFamily soft_cross_entropy_family = {.ops = {&soft_cross_entropy_op, &soft_cross_entropy_grad_op},
                                                   .kernels = {&soft_cross_entropy_with_grad_kernel}};

}  // namespace trainctl
