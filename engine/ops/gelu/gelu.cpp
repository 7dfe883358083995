// y = x * Phi(x); attr approximate: "tanh" takes the tanh form of Phi, "none" (the default) the exact one.
#include "engine/ops/elementwise.h"
#include "engine/ops/expect.h"
#include "engine/ops/grad_builder.h"
#include "engine/ops/layer_def.h"

namespace trainctl {

extern const OpDef gelu_op = {
    .name = "gelu",
    .infer = [](Infos in, const Attrs&) { return infer_elementwise("gelu", in, 1); },
    .rule = elementwise_rule,
    .cost = elementwise_cost<15>,
    .backward =
        [](GradBuilder& g) {
          g.set_in_grad(0, "gelu_grad", {g.out_grad(), g.in(0)}, g.attrs());
        },
};

/// (dy, x) -> dx
extern const OpDef gelu_grad_op = {
    .name = "gelu_grad",
    .infer = [](Infos in, const Attrs&) { return infer_elementwise("gelu_grad", in, 2); },
    .rule = elementwise_rule,
    .cost = elementwise_cost<25>,
    .in_place = true,
};

extern const LayerDef gelu_layer = {
    .name = "gelu",
    .doc = "x times the normal distribution function.",
    .fields =
        {text("approximate", "tanh: the usual approximation.").one_of({"none", "tanh"}).defaults(std::string("none"))},
    .emit = [](LayerContext& layer) { return layer.emit("gelu", layer.attrs); },
};

}  // namespace trainctl
