// Ops that choose between two values element by element, with numpy broadcasting; a condition holds where it is not 0.
//   where        y = condition ? a : b;      da = condition ? dy : 0, db = condition ? 0 : dy
//   masked_fill  y = mask ? value : x;       dx = mask ? 0 : dy; attr invert exchanges both sides
#include <fmt/format.h>

#include "engine/ops/elementwise.h"
#include "engine/ops/examples.h"
#include "engine/ops/expect.h"
#include "engine/ops/grad_builder.h"
#include "engine/ops/layer_def.h"
#include "engine/ops/op_family.h"

namespace trainctl {

extern const OpDef where_op = {
    .name = "where",
    .infer = [](Infos in, const Attrs&) { return infer_broadcast("where", in, 3); },
    .rule = broadcast_rule,
    .backward =
        [](GradBuilder& g) {
          set_broadcast_grad(g, 1, "masked_fill", {g.out_grad(), g.in(0)}, {{"invert", true}});
          set_broadcast_grad(g, 2, "masked_fill", {g.out_grad(), g.in(0)});
        },
    .no_gradient = 1,
    .kernel = {.name = "where",
               .element = [](const Attrs&) -> std::string { return "where"; },
               .channels_last = elementwise_images,
               .cost = elementwise_cost<1>,
               .example =
                   [] {
                     using namespace example;
                     return KernelExample{.what = "y = a where the condition is not 0, else b; inputs condition, a, b",
                                          .inputs = {{kMatrix}, {kMatrix}, {kMatrix}}};
                   }},
};

extern const OpDef masked_fill_op = {
    .name = "masked_fill",
    .infer = [](Infos in, const Attrs&) { return infer_broadcast("masked_fill", in, 2); },
    .rule = broadcast_rule,
    .backward =
        [](GradBuilder& g) {
          set_broadcast_grad(g, 0, "masked_fill", {g.out_grad(), g.in(1)}, {{"invert", g.attrs().flag("invert")}});
        },
    .no_gradient = 2,
    .kernel = {.name = "masked_fill",
               .element =
                   [](const Attrs& attrs) {
                     return fmt::format("masked_fill({},{})", static_cast<float>(attrs.number("value", 0)),
                                        attrs.flag("invert") ? 1 : 0);
                   },
               .channels_last = elementwise_images,
               .cost = elementwise_cost<1>,
               .example =
                   [] {
                     using namespace example;
                     return KernelExample{.what = "y = value where the mask is not 0, else x; inputs x, mask",
                                          .inputs = {{kMatrix}, {kMatrix}},
                                          .optional = {{"value", 0.5}, {"invert", true}}};
                   }},
};

extern const LayerDef masked_fill_layer = {
    .name = "masked_fill",
    .doc = "Replaces x with a value where the mask is not 0. Inputs: x and mask, with broadcasting as in NumPy.",
    .fields = {number("value", "Value to fill in.").required(),
               flag("invert", false, "Fill where the mask is 0 instead.")},
    .min_inputs = 2,
    .max_inputs = 2,
    .emit = [](LayerContext& layer) { return layer.emit("masked_fill", layer.attrs); },
};

extern const LayerDef where_layer = {
    .name = "where",
    .doc =
        "Selects a where the condition is not 0, else b. Inputs: condition, a and b, with broadcasting as in "
        "NumPy.",
    .min_inputs = 3,
    .max_inputs = 3,
    .emit = [](LayerContext& layer) { return layer.emit("where"); },
};

extern const OpFamily where_family = {.ops = {&where_op, &masked_fill_op},
                                      .layers = {&where_layer, &masked_fill_layer}};

}  // namespace trainctl
