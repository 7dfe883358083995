// correct[1] = number of rows whose label is among the k largest of the row's predictions; of equal predictions the
// lower class is the larger one. prediction [.., c], labels i32 [..]. Rows whose label is attr ignore_index are not
// right.
#include <fmt/format.h>

#include "engine/ops/examples.h"
#include "engine/ops/expect.h"
#include "engine/ops/metric_def.h"
#include "engine/ops/op_family.h"

namespace trainctl {
namespace {

void expect_predictions_and_labels(Infos in, int64_t k) {
  expect_inputs("top_k_correct", in, 2, 2);
  expect_floats("top_k_correct", in.first(1));
  expect_ndim("top_k_correct", in[0], 2);
  expect_shape("top_k_correct", "the label", in[1], Shape(in[0].shape.begin(), in[0].shape.end() - 1));
  if (in[1].dtype != DType::i32) shape_error("top_k_correct: the label is f32, expected i32");
  if (k > in[0].shape.back())
    throw ShapeError(
        fmt::format("k is {}, but the prediction {} has {} classes", k, to_string(in[0].shape), in[0].shape.back()),
        "k");
}

}  // namespace

extern const OpDef top_k_correct_op = {
    .name = "top_k_correct",
    .infer = [](Infos in, const Attrs& attrs) -> std::vector<TensorInfo> {
      expect_predictions_and_labels(in, attrs.integer("k", 1));
      return {{{1}}};
    },
    .rule = [](Infos in, const Attrs&) -> RuleText {
      const std::string rows = letters(in[1].shape.size(), "c");
      return {rows + "c," + rows + "->()", "c", "a label is compared with all classes of its row"};
    },
    .kernel = {.name = "top_k_correct",
               .accumulates = 1,
               .row_operands =
                   [](const Attrs&) {
                     return RowOperands{3, 0};
                   },
               .example =
                   [] {
                     using namespace example;
                     return KernelExample{.what = "inputs predictions, labels",
                                          .inputs = {{kMatrix}, ids(kColumn)},
                                          .attrs = {{"k", int64_t{5}}},
                                          .optional = {{"ignore_index", int64_t{0}}},
                                          .below = columns_of_first};
                   }},
};

extern const MetricDef accuracy_metric = {
    .name = "accuracy",
    .doc = "Fraction of rows whose largest prediction is the label.",
    .op = &top_k_correct_op,
    .reported_as = [](const Attrs&) { return std::string("accuracy"); },
};

extern const MetricDef top_k_metric = {
    .name = "top_k",
    .doc = "Fraction of rows whose label is among the k largest predictions.",
    .fields = {integer("k", "Number of largest predictions to consider.").required().at_least(1).at_most(kMaxSize)},
    .op = &top_k_correct_op,
    .reported_as = [](const Attrs& fields) { return fmt::format("top_{}", fields.integer("k")); },
};

extern const OpFamily top_k_correct_family = {.ops = {&top_k_correct_op}, .metrics = {&accuracy_metric, &top_k_metric}};

}  // namespace trainctl
