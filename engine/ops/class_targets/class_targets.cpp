// Turns labels into class probabilities times loss.class_weights, which soft_cross_entropy reads; the formula is in
// class_targets.h. The prediction only determines the shape.
#include "engine/ops/class_targets/class_targets.h"

#include <fmt/format.h>

#include "engine/ops/elementwise.h"
#include "engine/ops/examples.h"
#include "engine/ops/expect.h"
#include "engine/ops/op_family.h"

namespace trainctl {

extern const OpDef class_targets_op = {
    .name = "class_targets",
    .infer = [](Infos in, const Attrs& attrs) -> std::vector<TensorInfo> {
      expect_inputs("class_targets", in, 2, 2);
      expect_ndim("class_targets", in[0], 2);
      expect_shape("class_targets", "the label", in[1], Shape(in[0].shape.begin(), in[0].shape.end() - 1));
      if (in[1].dtype != DType::i32) shape_error("class_targets: the label is f32, expected i32");
      const auto weights = static_cast<int64_t>(attrs.numbers("class_weights").size());
      if (weights != in[0].shape.back())
        throw ShapeError(fmt::format("there are {} weights, but the prediction {} has {} classes", weights,
                                     to_string(in[0].shape), in[0].shape.back()),
                         "class_weights");
      if (weights > kMostClassWeights)
        throw ShapeError(fmt::format("there are {} weights, but at most {} are supported", weights, kMostClassWeights),
                         "class_weights");
      return {{in[0].shape}};
    },
    .rule = [](Infos in, const Attrs&) -> RuleText {
      const std::string rows = letters(in[1].shape.size(), "c");
      return {.text = rows + "c," + rows + "->" + rows + "c",
              .uncuttable = "c",
              .why_not = "the class probabilities of a row are compared with the softmax of the whole row"};
    },
    .kernel = {.name = "class_targets",
               .cost =
                   [](Infos, Infos out, const Attrs&) {
                     return Cost{.flops = 3.0 * static_cast<double>(num_elements(out[0].shape)),
                                 .bytes = static_cast<double>(bytes_of(out[0]))};
                   },
               .example =
                   [] {
                     using namespace example;
                     return KernelExample{.what = "weighted class probabilities of labels; inputs logits, labels",
                                          .inputs = {{{kRows, 256}}, ids(kColumn)},
                                          .attrs = {{"class_weights", std::vector<double>(256, 0.5)}},
                                          .optional = {{"label_smoothing", 0.1}, {"ignore_index", int64_t{-1}}},
                                          .below = columns_of_first};
                   }},
};

extern const OpFamily class_targets_family = {.ops = {&class_targets_op}};

}  // namespace trainctl
