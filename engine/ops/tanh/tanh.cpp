// y = tanh(x); dx = dy * (1 - y^2).
#include "engine/ops/elementwise.h"
#include "engine/ops/expect.h"
#include "engine/ops/grad_builder.h"
#include "engine/ops/layer_def.h"

namespace trainctl {

extern const OpDef tanh_op = {
    .name = "tanh",
    .infer = [](Infos in, const Attrs&) { return infer_elementwise("tanh", in, 1); },
    .rule = elementwise_rule,
    .cost = elementwise_cost<10>,
    .backward =
        [](GradBuilder& g) {
          g.set_in_grad(0, "tanh_grad", {g.out_grad(), g.out()});
        },
    .in_place = true,
};

/// (dy, y) -> dx
extern const OpDef tanh_grad_op = {
    .name = "tanh_grad",
    .infer = [](Infos in, const Attrs&) { return infer_elementwise("tanh_grad", in, 2); },
    .rule = elementwise_rule,
    .cost = elementwise_cost<3>,
    .in_place = true,
};

extern const LayerDef tanh_layer = {
    .name = "tanh",
    .doc = "Hyperbolic tangent.",
    .emit = [](LayerContext& layer) { return layer.emit("tanh"); },
};

}  // namespace trainctl
