// y = the largest of x over attr dims; keep_dims keeps them with size 1. If no dim is left, y is [1]. A NaN is the
// largest. The gradient goes to the largest elements, in equal parts if there are several, as that of PyTorch's amax.
#include <fmt/format.h>

#include <algorithm>

#include "engine/base/text.h"
#include "engine/ops/elementwise.h"
#include "engine/ops/examples.h"
#include "engine/ops/expect.h"
#include "engine/ops/grad_builder.h"
#include "engine/ops/layer_def.h"
#include "engine/ops/op_family.h"
#include "engine/ops/reduce_sum/reduced_dims.h"

namespace trainctl {

extern const OpDef reduce_max_op = {
    .name = "reduce_max",
    .infer = [](Infos in, const Attrs& attrs) { return infer_reduction("reduce_max", in, attrs); },
    .rule = [](Infos in, const Attrs& attrs) -> RuleText {
      return {reduction_rule(in, attrs), reduced_letters(in, attrs),
              "reduce_max needs the whole of each dim that it reduces on one rank"};
    },
    .backward =
        [](GradBuilder& g) {
          g.set_in_grad(0, "reduce_max_grad", {g.out_grad(), g.in(0), g.out()}, {{"dims", g.attrs().ints("dims")}});
        },
    .kernel = {.name = "reduce_max",
               .cost = reduction_cost<1>,
               .example =
                   [] {
                     using namespace example;
                     return KernelExample{.what = "y = the largest of x over dims",
                                          .inputs = {{kMatrix}},
                                          .attrs = {{"dims", Ints{1}}, {"keep_dims", false}}};
                   }},
};

/// (dy, x, y) -> dx
extern const OpDef reduce_max_grad_op = {
    .name = "reduce_max_grad",
    .infer = [](Infos in, const Attrs& attrs) -> std::vector<TensorInfo> {
      expect_inputs("reduce_max_grad", in, 3, 3);
      const Ints dims = attrs.ints("dims");
      const bool fits = in[0].shape == in[2].shape && (in[0].shape == reduced_shape(in[1].shape, dims, false) ||
                                                       in[0].shape == reduced_shape(in[1].shape, dims, true));
      if (!fits) {
        shape_error(fmt::format("reduce_max_grad: dy {} and y {} are not x {} reduced over dims {}", to_string(in[0]),
                                to_string(in[2]), to_string(in[1]), format_list(dims)));
      }
      return {in[1]};
    },
    .kernel = {.name = "reduce_max_grad",
               .cost = elementwise_cost<3>,
               .example =
                   [] {
                     using namespace example;
                     return KernelExample{.what = "dx = dy where x = y, in equal parts; inputs dy, x, y",
                                          .inputs = {{kColumn}, {kMatrix}, {kColumn}},
                                          .attrs = {{"dims", Ints{1}}}};
                   }},
};

extern const LayerDef reduce_max_layer = {
    .name = "reduce_max",
    .doc = "Maximum over dims.",
    .fields = reduction_fields(),
    .emit =
        [](LayerContext& layer) {
          return layer.emit("reduce_max",
                            {{"dims", reduced_dims(layer)}, {"keep_dims", layer.attrs.flag("keep_dims")}});
        },
};

/// -max(-x), which is exact.
extern const LayerDef reduce_min_layer = {
    .name = "reduce_min",
    .doc = "Minimum over dims.",
    .fields = reduction_fields(),
    .emit =
        [](LayerContext& layer) {
          LayerBuilder& b = layer.builder;
          const Attrs attrs{{"dims", reduced_dims(layer)}, {"keep_dims", layer.attrs.flag("keep_dims")}};
          const TensorId negated = b.emit("scale", {layer.inputs[0]}, {{"factor", -1.0}}, "negated")[0];
          const TensorId largest = b.emit("reduce_max", {negated}, attrs, "largest")[0];
          return b.emit("scale", {largest}, {{"factor", -1.0}})[0];
        },
};

extern const OpFamily reduce_max_family = {.ops = {&reduce_max_op, &reduce_max_grad_op},
                                           .layers = {&reduce_max_layer, &reduce_min_layer}};

}  // namespace trainctl
