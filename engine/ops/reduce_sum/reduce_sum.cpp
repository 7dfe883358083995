// y = scale * sum of x over attr dims (a mean has scale 1 / count); keep_dims keeps them with size 1. If no dim is
// left, y is [1]. Backward spreads scale * dy over x's shape.
#include <fmt/format.h>

#include "engine/ops/elementwise.h"
#include "engine/ops/examples.h"
#include "engine/ops/expect.h"
#include "engine/ops/grad_builder.h"
#include "engine/ops/layer_def.h"
#include "engine/ops/op_family.h"
#include "engine/ops/reduce_sum/reduced_dims.h"

namespace trainctl {
namespace {

/// The form for images reduced over their pixels: dims 2 and 3, which are 1 and 2 if the channels are last.
std::optional<ChannelsLast> over_pixels(const Shape& images, const Attrs& attrs, unsigned inputs, unsigned outputs) {
  Ints dims = attrs.ints("dims");
  std::sort(dims.begin(), dims.end());
  if (images.size() != 4 || dims != Ints{2, 3}) return {};
  ChannelsLast form{attrs, inputs, outputs};
  form.attrs.set("dims", Ints{1, 2});
  return form;
}

TensorId emit_reduction(LayerContext& layer, bool mean) {
  const Ints dims = reduced_dims(layer);
  double count = 1;
  for (int64_t dim : dims) count *= static_cast<double>(layer.shape()[dim]);
  Attrs attrs{{"dims", dims}, {"keep_dims", layer.attrs.flag("keep_dims")}};
  attrs.set("scale", mean ? 1.0 / count : 1.0);
  return layer.emit("reduce_sum", attrs);
}

}  // namespace

extern const OpDef reduce_sum_op = {
    .name = "reduce_sum",
    .infer = [](Infos in, const Attrs& attrs) { return infer_reduction("reduce_sum", in, attrs); },
    .rule = [](Infos in, const Attrs& attrs) -> RuleText { return {reduction_rule(in, attrs)}; },
    .backward =
        [](GradBuilder& g) {
          Attrs attrs{{"shape", g.shape(g.in(0))}, {"dims", g.attrs().ints("dims")}};
          attrs.set("scale", g.attrs().number("scale", 1.0));
          g.set_in_grad(0, "broadcast_to", {g.out_grad()}, attrs);
        },
    .kernel = {.name = "reduce_sum",
               .accumulates = 1,
               .channels_last =
                   [](Infos in, const Attrs& attrs) {
                     return over_pixels(in[0].shape, attrs, 1, attrs.flag("keep_dims") ? 1 : 0);
                   },
               .cost = reduction_cost<1>,
               .example =
                   [] {
                     using namespace example;
                     return KernelExample{.what = "y = scale * x summed over dims",
                                          .inputs = {{kMatrix}},
                                          .attrs = {{"dims", Ints{1}}, {"keep_dims", false}, {"scale", 1.0}}};
                   }},
};

/// dy -> scale * dy, repeated along dims to attr shape
extern const OpDef broadcast_to_op = {
    .name = "broadcast_to",
    .infer = [](Infos in, const Attrs& attrs) -> std::vector<TensorInfo> {
      expect_inputs("broadcast_to", in, 1, 1);
      const Shape shape = attrs.ints("shape");
      const Ints dims = attrs.ints("dims");
      const bool fits =
          in[0].shape == reduced_shape(shape, dims, false) || in[0].shape == reduced_shape(shape, dims, true);
      if (!fits) shape_error(fmt::format("broadcast_to: {} is not {} reduced", to_string(in[0]), to_string(shape)));
      return {{shape, in[0].dtype}};
    },
    .kernel = {.name = "broadcast_to",
               .channels_last =
                   [](Infos in, const Attrs& attrs) {
                     Shape shape = attrs.ints("shape");
                     auto form = over_pixels(shape, attrs, in[0].shape.size() == 4 ? 1 : 0, 1);
                     if (form) form->attrs.set("shape", Ints{shape[0], shape[2], shape[3], shape[1]});
                     return form;
                   },
               .cost = elementwise_cost<1>,
               .example =
                   [] {
                     using namespace example;
                     return KernelExample{.what = "y = scale * x repeated along dims",
                                          .inputs = {{kColumn}},
                                          .attrs = {{"shape", kMatrix}, {"dims", Ints{1}}, {"scale", 1.0}}};
                   }},
};

extern const LayerDef reduce_sum_layer = {
    .name = "reduce_sum",
    .doc = "Sum over dims.",
    .fields = reduction_fields(),
    .emit = [](LayerContext& layer) { return emit_reduction(layer, false); },
};

extern const LayerDef reduce_mean_layer = {
    .name = "reduce_mean",
    .doc = "Mean over dims.",
    .fields = reduction_fields(),
    .emit = [](LayerContext& layer) { return emit_reduction(layer, true); },
};

extern const OpFamily reduce_sum_family = {.ops = {&reduce_sum_op, &broadcast_to_op},
                                           .layers = {&reduce_sum_layer, &reduce_mean_layer}};

}  // namespace trainctl
