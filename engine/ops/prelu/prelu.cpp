// y = x where x > 0, else w x, with a trained w: relu(x) + w min(x, 0), built from relu, clip, mul and add.
#include <fmt/format.h>

#include "engine/ops/expect.h"
#include "engine/ops/layer_def.h"
#include "engine/ops/layer_fields.h"
#include "engine/ops/op_family.h"

namespace trainctl {

extern const LayerDef prelu_layer = {
    .name = "prelu",
    .doc = "Computes x where x > 0, else weight * x, with a trained weight.",
    .fields = {flag("per_channel", false,
                    "Use one weight per channel (dim 1), with the shape [c, 1, ..], instead of a single weight."),
               make_field("init", FieldKind::initial, "Initial values of the weight (see below); 0.25 if omitted.")},
    .emit =
        [](LayerContext& layer) {
          const Shape& in = layer.shape();
          Shape of_weight = {1};
          if (layer.attrs.flag("per_channel")) {
            if (in.size() < 2)
              shape_error(fmt::format("prelu needs channels in dim 1, but its input is {}", to_string(in)));
            of_weight.assign(in.size() - 1, 1);
            of_weight[0] = in[1];
          }
          LayerBuilder& b = layer.builder;
          const TensorId x = layer.inputs[0], w = layer.weight(of_weight, constant_init(0.25), Fans{1, 1});
          const TensorId above = b.emit("relu", {x}, {}, "above")[0];
          const TensorId below = b.emit("clip", {x}, {{"max", 0.0}}, "below")[0];
          const TensorId scaled = b.emit("mul", {below, w}, {}, "scaled")[0];
          return b.emit("add", {above, scaled})[0];
        },
};

extern const OpFamily prelu_family = {.ops = {}, .layers = {&prelu_layer}};

}  // namespace trainctl
