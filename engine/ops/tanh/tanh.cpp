// y = tanh(x); dx = dy * (1 - y^2).
#include "engine/ops/elementwise.h"
#include "engine/ops/examples.h"
#include "engine/ops/expect.h"
#include "engine/ops/grad_builder.h"
#include "engine/ops/layer_def.h"
#include "engine/ops/op_family.h"

namespace trainctl {

extern const OpDef tanh_op = {
    .name = "tanh",
    .infer = [](Infos in, const Attrs&) { return infer_elementwise("tanh", in, 1); },
    .rule = elementwise_rule,
    .backward =
        [](GradBuilder& g) {
          g.set_in_grad(0, "tanh_grad", {g.out_grad(), g.out()});
        },
    .kernel = {.name = "tanh",
               .in_place = InPlace::first_on_first,
               .element = [](const Attrs&) -> std::string { return "tanh"; },
               .channels_last = elementwise_images,
               .cost = elementwise_cost<10>,
               .example =
                   [] {
                     using namespace example;
                     return KernelExample{.what = "y = tanh(x)", .inputs = {{kMatrix}}};
                   }},
};

/// (dy, y) -> dx
extern const OpDef tanh_grad_op = {
    .name = "tanh_grad",
    .infer = [](Infos in, const Attrs&) { return infer_elementwise("tanh_grad", in, 2); },
    .rule = elementwise_rule,
    .kernel = {.name = "tanh_grad",
               .in_place = InPlace::first_on_first,
               .element = [](const Attrs&) -> std::string { return "tanh_grad"; },
               .channels_last = elementwise_images,
               .cost = elementwise_cost<3>,
               .example =
                   [] {
                     using namespace example;
                     return KernelExample{.what = "inputs dy, y", .inputs = {{kMatrix}, {kMatrix}}};
                   }},
};

extern const LayerDef tanh_layer = {
    .name = "tanh",
    .doc = "Hyperbolic tangent.",
    .emit = [](LayerContext& layer) { return layer.emit("tanh"); },
};

extern const OpFamily tanh_family = {.ops = {&tanh_op, &tanh_grad_op}, .layers = {&tanh_layer}};

}  // namespace trainctl
