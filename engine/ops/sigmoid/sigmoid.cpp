// y = 1 / (1 + exp(-x)); dx = dy * y * (1 - y).
#include "engine/ops/elementwise.h"
#include "engine/ops/expect.h"
#include "engine/ops/grad_builder.h"
#include "engine/ops/layer_def.h"

namespace trainctl {

extern const OpDef sigmoid_op = {
    .name = "sigmoid",
    .infer = [](Infos in, const Attrs&) { return infer_elementwise("sigmoid", in, 1); },
    .rule = elementwise_rule,
    .cost = elementwise_cost<10>,
    .backward =
        [](GradBuilder& g) {
          g.set_in_grad(0, "sigmoid_grad", {g.out_grad(), g.out()});
        },
    .in_place = true,
};

/// (dy, y) -> dx
extern const OpDef sigmoid_grad_op = {
    .name = "sigmoid_grad",
    .infer = [](Infos in, const Attrs&) { return infer_elementwise("sigmoid_grad", in, 2); },
    .rule = elementwise_rule,
    .cost = elementwise_cost<3>,
    .in_place = true,
};

extern const LayerDef sigmoid_layer = {
    .name = "sigmoid",
    .doc = "1 / (1 + exp(-x)).",
    .emit = [](LayerContext& layer) { return layer.emit("sigmoid"); },
};

}  // namespace trainctl
