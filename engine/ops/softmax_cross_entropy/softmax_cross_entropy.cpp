// loss[1] = scale * sum over rows of -log softmax(logits)[label]; dlogits = scale * (softmax - onehot).
// logits [.., c], labels i32 [..]. attrs label_smoothing, ignore_index: targets.h.
// If c is cut, ranks exchange three numbers per row: of the logits other than the label's (top, sum of e^(x - top)), so
// that a probability near 1 loses no digits, and the label's logit, -inf on ranks that do not have it. Label smoothing
// adds the sum of the logits.
#include <fmt/format.h>

#include "engine/ops/elementwise.h"
#include "engine/ops/examples.h"
#include "engine/ops/expect.h"
#include "engine/ops/grad_builder.h"
#include "engine/ops/loss_def.h"
#include "engine/ops/op_family.h"
#include "engine/ops/program_kernels.h"

namespace trainctl {
namespace {

void expect_logits_and_labels(std::string_view op, Infos in) {
  expect_inputs(op, in, 2, 2);
  expect_floats(op, in.first(1));
  expect_ndim(op, in[0], 2);
  expect_shape(op, "the label", in[1], Shape(in[0].shape.begin(), in[0].shape.end() - 1));
  if (in[1].dtype != DType::i32) shape_error(fmt::format("{}: the label is f32, expected i32", op));
}

/// The shape of the statistics that ranks exchange: the numbers of each row (see the top of the file).
Shape cross_entropy_stats_shape(Infos in, const Attrs& attrs) {
  Shape shape = in[0].shape;
  shape.back() = attrs.number("label_smoothing", 0) > 0 ? 4 : 3;
  return shape;
}

void expect_parts(Infos in, const Attrs& attrs) {
  example::expect(in.size() == 3, "it expects logits, labels and the statistics of all shards");
  expect_logits_and_labels("softmax_cross_entropy", in.first(2));
  example::expect_parts(in, 3, cross_entropy_stats_shape(in, attrs));
}

}  // namespace

extern const OpDef softmax_cross_entropy_grad_op;
extern const OpDef soft_cross_entropy_op;  // soft_cross_entropy/: labels that are shares of all classes

extern const KernelDef softmax_cross_entropy_stats_kernel = {
    .name = "softmax_cross_entropy_stats",
    .row_operands =
        [](const Attrs&) {
          return RowOperands{3, 1};
        },
    .example =
        [] {
          using namespace example;
          return KernelExample{.what = "(top, sum, logit of the label) of each row of a shard; inputs logits, labels",
                               .inputs = {{kMatrix}, ids(kColumn)},
                               .outputs = [](Infos in, const Attrs& attrs, DType) -> std::vector<TensorInfo> {
                                 expect_logits_and_labels("softmax_cross_entropy", in);
                                 return {{cross_entropy_stats_shape(in, attrs)}};
                               },
                               .below = columns_of_first};
        },
};

/// (logits, labels, stats [parts, ..]) -> loss; the logits are not read
extern const KernelDef softmax_cross_entropy_apply_kernel = {
    .name = "softmax_cross_entropy_apply",
    .accumulates = 1,
    .row_operands =
        [](const Attrs&) {
          return RowOperands{7, 0};
        },
    .cost =
        [](Infos in, Infos, const Attrs&) {
          return Cost{.flops = 8.0 * static_cast<double>(num_elements(in[2].shape)),
                      .bytes = static_cast<double>(bytes_of(in[2]))};
        },
    .example =
        [] {
          using namespace example;
          return KernelExample{.what = "loss; inputs logits, labels, statistics of all shards",
                               .inputs = {{kMatrix}, ids(kColumn), f32({4, kRows, 3})},
                               .attrs = {{"scale", 1e-6}},
                               .outputs = [](Infos in, const Attrs& attrs, DType) -> std::vector<TensorInfo> {
                                 expect_parts(in, attrs);
                                 return {{{1}}};
                               },
                               .below = columns_of_first};
        },
};

/// (logits, labels, stats [parts, ..]) -> dlogits
extern const KernelDef softmax_cross_entropy_grad_apply_kernel = {
    .name = "softmax_cross_entropy_grad_apply",
    .in_place = InPlace::first_on_first,
    .row_operands =
        [](const Attrs&) {
          return RowOperands{7, 1};
        },
    .example =
        [] {
          using namespace example;
          return KernelExample{.what = "gradient of a shard; inputs logits, labels, statistics of all shards",
                               .inputs = {{kMatrix}, ids(kColumn), f32({4, kRows, 3})},
                               .attrs = {{"scale", 1e-6}},
                               .outputs = [](Infos in, const Attrs& attrs, DType) -> std::vector<TensorInfo> {
                                 expect_parts(in, attrs);
                                 return {in[0]};
                               },
                               .below = columns_of_first};
        },
};

extern const KernelDef softmax_cross_entropy_with_grad_kernel = {
    .name = "softmax_cross_entropy_with_grad",
    .accumulates = 1,
    .in_place = InPlace::last_on_first,
    .row_operands =
        [](const Attrs&) {
          return RowOperands{3, 2};
        },
    .example =
        [] {
          using namespace example;
          return KernelExample{.what = "loss and gradient in one pass; inputs logits, labels",
                               .inputs = {{kMatrix}, ids(kColumn)},
                               .attrs = {{"scale", 1e-6}},
                               .outputs = loss_and_gradient,
                               .below = columns_of_first};
        },
};

extern const OpDef softmax_cross_entropy_op = {
    .name = "softmax_cross_entropy",
    .infer = [](Infos in, const Attrs&) -> std::vector<TensorInfo> {
      expect_logits_and_labels("softmax_cross_entropy", in);
      return {{{1}}};
    },
    .rule = [](Infos in, const Attrs&) -> RuleText {
      const std::string rows = letters(in[1].shape.size(), "c");
      return {.text = rows + "c," + rows + "->()", .inner = "c"};
    },
    .backward =
        [](GradBuilder& g) {
          g.set_in_grad(0, "softmax_cross_entropy_grad", {g.in(0), g.in(1)}, g.attrs());
        },
    .kernel = {.name = "softmax_cross_entropy",
               .accumulates = 1,
               .loss_grad = &softmax_cross_entropy_grad_op.kernel,
               .loss_with_grad = &softmax_cross_entropy_with_grad_kernel,
               .row_operands =
                   [](const Attrs&) {
                     return RowOperands{3, 0};
                   },
               .cost = reduction_cost<12>,
               .example =
                   [] {
                     using namespace example;
                     return KernelExample{.what = "inputs logits, labels",
                                          .inputs = {{kMatrix}, ids(kColumn)},
                                          .attrs = {{"scale", 1e-6}},
                                          .below = columns_of_first};
                   }},
    .inner_sum =
        InnerSum{&softmax_cross_entropy_stats_kernel, cross_entropy_stats_shape, &softmax_cross_entropy_apply_kernel},
};

/// (logits, label) -> dlogits
extern const OpDef softmax_cross_entropy_grad_op = {
    .name = "softmax_cross_entropy_grad",
    .infer = [](Infos in, const Attrs&) -> std::vector<TensorInfo> {
      expect_logits_and_labels("softmax_cross_entropy_grad", in);
      return {in[0]};
    },
    .kernel = {.name = "softmax_cross_entropy_grad",
               .row_operands =
                   [](const Attrs&) {
                     return RowOperands{3, 1};
                   },
               .cost = elementwise_cost<14>,
               .example =
                   [] {
                     using namespace example;
                     return KernelExample{.what = "inputs logits, labels",
                                          .inputs = {{kMatrix}, ids(kColumn)},
                                          .attrs = {{"scale", 1e-6}},
                                          .below = columns_of_first};
                   }},
    .inner_sum = InnerSum{&softmax_cross_entropy_stats_kernel, cross_entropy_stats_shape,
                          &softmax_cross_entropy_grad_apply_kernel},
};

extern const LossDef softmax_cross_entropy_loss = {
    .name = "softmax_cross_entropy",
    .doc = "mean cross-entropy with integer labels",
    .fields = {number("label_smoothing",
                      "Fraction of the target probability that is distributed evenly over all "
                      "classes.")
                   .defaults(0.0)
                   .at_least(0)
                   .at_most(1),
               numbers("class_weights",
                       "Weights of the losses of the classes, one per class, for at most 512 classes. The mean is "
                       "still over the number of labels.")
                   .at_least(0),
               integer("ignore_index",
                       "Labels with this value are ignored. The mean is over all other labels, or 0 if there are none.")
                   .at_least(-2147483648.0)
                   .at_most(2147483647.0)},
    .op = &softmax_cross_entropy_op,
    .labels_are_classes = true,
    .soft_op = &soft_cross_entropy_op,
};

extern const OpFamily softmax_cross_entropy_family = {
    .ops = {&softmax_cross_entropy_op, &softmax_cross_entropy_grad_op},
    .kernels = {&softmax_cross_entropy_with_grad_kernel, &softmax_cross_entropy_stats_kernel,
                &softmax_cross_entropy_apply_kernel, &softmax_cross_entropy_grad_apply_kernel},
    .losses = {&softmax_cross_entropy_loss}};

}  // namespace trainctl
