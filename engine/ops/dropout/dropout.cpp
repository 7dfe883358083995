// y = keep ? x / (1 - p) : 0. Whether an element is kept depends on (seed, attr key, its place in the
// whole tensor, step, micro-batch) alone, so the backward pass is the same op on dy.
#include <fmt/format.h>

#include "engine/ops/elementwise.h"
#include "engine/ops/expect.h"
#include "engine/ops/grad_builder.h"

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
    .cost = elementwise_cost<20>,
    .backward = [](GradBuilder& g) { g.set_in_grad(0, "dropout", {g.out_grad()}, g.attrs()); },
};

}  // namespace trainctl
