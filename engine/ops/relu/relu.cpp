// y = max(x, 0); dx = dy where y > 0.
#include "engine/ops/elementwise.h"
#include "engine/ops/expect.h"
#include "engine/ops/grad_builder.h"
#include "engine/ops/layer_def.h"

namespace trainctl {

extern const OpDef relu_op = {
    .name = "relu",
    .infer = [](Infos in, const Attrs&) { return infer_elementwise("relu", in, 1); },
    .rule = elementwise_rule,
    .cost = elementwise_cost<1>,
    .backward =
        [](GradBuilder& g) {
          g.set_in_grad(0, "relu_grad", {g.out_grad(), g.out()});
        },
    .in_place = true,
};

/// (dy, y) -> dx
extern const OpDef relu_grad_op = {
    .name = "relu_grad",
    .infer = [](Infos in, const Attrs&) { return infer_elementwise("relu_grad", in, 2); },
    .rule = elementwise_rule,
    .cost = elementwise_cost<1>,
    .in_place = true,
};

extern const LayerDef relu_layer = {
    .name = "relu",
    .doc = "max(x, 0).",
    .emit = [](LayerContext& layer) { return layer.emit("relu"); },
};

}  // namespace trainctl
