// y = 1 / (1 + exp(-x)); dx = dy * y * (1 - y).
#include "engine/ops/elementwise.h"
#include "engine/ops/examples.h"
#include "engine/ops/expect.h"
#include "engine/ops/grad_builder.h"
#include "engine/ops/layer_def.h"
#include "engine/ops/op_family.h"

namespace trainctl {

extern const OpDef sigmoid_op = {
    .name = "sigmoid",
    .infer = [](Infos in, const Attrs&) { return infer_elementwise("sigmoid", in, 1); },
    .rule = elementwise_rule,
    .backward =
        [](GradBuilder& g) {
          g.set_in_grad(0, "sigmoid_grad", {g.out_grad(), g.out()});
        },
    .kernel = {.name = "sigmoid",
               .in_place = InPlace::first_on_first,
               .element = [](const Attrs&) -> std::string { return "sigmoid"; },
               .channels_last = elementwise_images,
               .cost = elementwise_cost<10>,
               .example =
                   [] {
                     using namespace example;
                     return KernelExample{.what = "y = 1 / (1 + exp(-x))", .inputs = {{kMatrix}}};
                   }},
};

/// (dy, y) -> dx
extern const OpDef sigmoid_grad_op = {
    .name = "sigmoid_grad",
    .infer = [](Infos in, const Attrs&) { return infer_elementwise("sigmoid_grad", in, 2); },
    .rule = elementwise_rule,
    .kernel = {.name = "sigmoid_grad",
               .in_place = InPlace::first_on_first,
               .element = [](const Attrs&) -> std::string { return "sigmoid_grad"; },
               .channels_last = elementwise_images,
               .cost = elementwise_cost<3>,
               .example =
                   [] {
                     using namespace example;
                     return KernelExample{.what = "inputs dy, y", .inputs = {{kMatrix}, {kMatrix}}};
                   }},
};

extern const LayerDef sigmoid_layer = {
    .name = "sigmoid",
    .doc = "Computes 1 / (1 + exp(-x)).",
    .emit = [](LayerContext& layer) { return layer.emit("sigmoid"); },
};

extern const OpFamily sigmoid_family = {.ops = {&sigmoid_op, &sigmoid_grad_op}, .layers = {&sigmoid_layer}};

}  // namespace trainctl
