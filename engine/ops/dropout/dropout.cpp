// y = keep ? x / (1 - p) : 0. Whether an element is kept depends only on (seed, attr key, its index in the whole
// tensor, step, micro-batch), so the backward pass is the same op on dy.
#include <fmt/format.h>

#include "engine/base/text.h"
#include "engine/ops/elementwise.h"
#include "engine/ops/examples.h"
#include "engine/ops/expect.h"
#include "engine/ops/grad_builder.h"
#include "engine/ops/layer_def.h"
#include "engine/ops/op_family.h"

namespace trainctl {

extern const OpDef dropout_op = {
    .name = "dropout",
    .infer =
        [](Infos in, const Attrs& attrs) {
          const double p = attrs.number("p");
          if (!(p >= 0 && p < 1)) shape_error(fmt::format("dropout: p is {}, expected 0 <= p < 1", p));
          return infer_elementwise("dropout", in, 1);
        },
    .rule = elementwise_rule,
    .backward = [](GradBuilder& g) { g.set_in_grad(0, "dropout", {g.out_grad()}, g.attrs()); },
    .kernel = {.name = "dropout",
               .element =
                   [](const Attrs& attrs) {
                     return fmt::format("dropout({},{})", attrs.number("p"), attrs.integer("key"));
                   },
               .cost = elementwise_cost<20>,
               .example =
                   [] {
                     using namespace example;
                     return KernelExample{.what = "y = keep ? x / (1 - p) : 0",
                                          .inputs = {{kMatrix}},
                                          .attrs = {{"p", 0.1}, {"key", int64_t{1}}}};
                   }},
};

extern const LayerDef dropout_layer = {
    .name = "dropout",
    .doc = "Zeroes elements at random while training.",
    .fields = {number("p", "Share of elements that become 0.").defaults(0.5).at_least(0).below(1)},
    .emit =
        [](LayerContext& layer) {
          const auto key = static_cast<int64_t>(stable_hash(layer.builder.name()));
          return layer.emit("dropout", {{"p", layer.attrs.number("p")}, {"key", key}});
        },
};

extern const OpFamily dropout_family = {.ops = {&dropout_op}, .layers = {&dropout_layer}};

}  // namespace trainctl
