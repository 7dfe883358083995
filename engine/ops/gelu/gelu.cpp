// y = x * Phi(x); attr approximate: "tanh" uses the tanh approximation of Phi, "none" (the default) the exact form.
#include "engine/ops/elementwise.h"
#include "engine/ops/examples.h"
#include "engine/ops/expect.h"
#include "engine/ops/grad_builder.h"
#include "engine/ops/layer_def.h"
#include "engine/ops/op_family.h"

namespace trainctl {

extern const OpDef gelu_op = {
    .name = "gelu",
    .infer = [](Infos in, const Attrs&) { return infer_elementwise("gelu", in, 1); },
    .rule = elementwise_rule,
    .backward =
        [](GradBuilder& g) {
          g.set_in_grad(0, "gelu_grad", {g.out_grad(), g.in(0)}, g.attrs());
        },
    .kernel = {.name = "gelu",
               .as_epilogue =
                   [](const Attrs& attrs) {
                     return EpilogueRole{EpilogueStep::activation, gelu_of(attrs)};
                   },
               .element = [](const Attrs& attrs) -> std::string {
                 return gelu_of(attrs) == Activation::gelu_tanh ? "gelu_tanh" : "gelu";
               },
               .channels_last = elementwise_images,
               .cost = elementwise_cost<15>,
               .example =
                   [] {
                     using namespace example;
                     return KernelExample{.what = "y = x Phi(x)",
                                          .inputs = {{kMatrix}},
                                          .optional = {{"approximate", std::string("tanh")}}};
                   }},
};

/// (dy, x) -> dx
extern const OpDef gelu_grad_op = {
    .name = "gelu_grad",
    .infer = [](Infos in, const Attrs&) { return infer_elementwise("gelu_grad", in, 2); },
    .rule = elementwise_rule,
    .kernel = {.name = "gelu_grad",
               .in_place = InPlace::first_on_first,
               .as_epilogue =
                   [](const Attrs& attrs) {
                     return EpilogueRole{EpilogueStep::slope, gelu_of(attrs)};
                   },
               .element = [](const Attrs& attrs) -> std::string {
                 return gelu_of(attrs) == Activation::gelu_tanh ? "gelu_tanh_grad" : "gelu_grad";
               },
               .channels_last = elementwise_images,
               .cost = elementwise_cost<25>,
               .example =
                   [] {
                     using namespace example;
                     return KernelExample{.what = "inputs dy, x",
                                          .inputs = {{kMatrix}, {kMatrix}},
                                          .optional = {{"approximate", std::string("tanh")}}};
                   }},
};

extern const LayerDef gelu_layer = {
    .name = "gelu",
    .doc = "x times the cumulative normal distribution function.",
    .fields = {text("approximate", "Approximation to use. none: the exact function; tanh: the tanh approximation.")
                   .one_of({"none", "tanh"})
                   .defaults(std::string("none"))},
    .emit = [](LayerContext& layer) { return layer.emit("gelu", layer.attrs); },
};

extern const OpFamily gelu_family = {.ops = {&gelu_op, &gelu_grad_op}, .layers = {&gelu_layer}};

}  // namespace trainctl
