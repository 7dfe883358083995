// y = max(x, 0); dx = dy where y > 0.
#include "engine/ops/elementwise.h"
#include "engine/ops/examples.h"
#include "engine/ops/expect.h"
#include "engine/ops/grad_builder.h"
#include "engine/ops/layer_def.h"
#include "engine/ops/op_family.h"

namespace trainctl {

extern const OpDef relu_op = {
    .name = "relu",
    .infer = [](Infos in, const Attrs&) { return infer_elementwise("relu", in, 1); },
    .rule = elementwise_rule,
    .backward =
        [](GradBuilder& g) {
          g.set_in_grad(0, "relu_grad", {g.out_grad(), g.out()});
        },
    .kernel = {.name = "relu",
               .in_place = InPlace::first_on_first,
               .as_epilogue =
                   [](const Attrs&) {
                     return EpilogueRole{EpilogueStep::activation, Activation::relu};
                   },
               .element = [](const Attrs&) -> std::string { return "relu"; },
               .channels_last = elementwise_images,
               .cost = elementwise_cost<1>,
               .example =
                   [] {
                     using namespace example;
                     return KernelExample{.what = "y = max(x, 0)", .inputs = {{kMatrix}}};
                   }},
};

/// (dy, y) -> dx
extern const OpDef relu_grad_op = {
    .name = "relu_grad",
    .infer = [](Infos in, const Attrs&) { return infer_elementwise("relu_grad", in, 2); },
    .rule = elementwise_rule,
    .kernel = {
        .name = "relu_grad",
        .in_place = InPlace::first_on_first,
        .as_epilogue =
            [](const Attrs&) {
              return EpilogueRole{EpilogueStep::slope, Activation::relu};
            },
        .element = [](const Attrs&) -> std::string { return "relu_grad"; },
        .channels_last = elementwise_images,
        .cost = elementwise_cost<1>,
        .example =
            [] {
              using namespace example;
              return KernelExample{.what = "dx = dy where y > 0; inputs dy, y", .inputs = {{kMatrix}, {kMatrix}}};
            }},
};

extern const LayerDef relu_layer = {
    .name = "relu",
    .doc = "Computes max(x, 0).",
    .emit = [](LayerContext& layer) { return layer.emit("relu"); },
};

extern const OpFamily relu_family = {.ops = {&relu_op, &relu_grad_op}, .layers = {&relu_layer}};

}  // namespace trainctl
