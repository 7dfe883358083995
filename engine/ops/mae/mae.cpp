// loss[1] = scale * sum |p - label|; dp = scale * sign(p - label), 0 where they are equal.
#include "engine/ops/elementwise.h"
#include "engine/ops/expect.h"
#include "engine/ops/grad_builder.h"
#include "engine/ops/loss_def.h"
#include "engine/ops/pair_loss.h"

namespace trainctl {

extern const OpDef mae_op = {
    .name = "mae",
    .infer = [](Infos in, const Attrs&) { return infer_pair_loss("mae", in); },
    .rule = pair_loss_rule,
    .cost = pair_loss_cost,
    .backward =
        [](GradBuilder& g) {
          g.set_in_grad(0, "mae_grad", {g.in(0), g.in(1)}, g.attrs());
        },
    .can_accumulate = 1,
};

/// (p, label) -> dp
extern const OpDef mae_grad_op = {
    .name = "mae_grad",
    .infer = [](Infos in, const Attrs&) { return infer_pair_loss_grad("mae_grad", in); },
    .cost = elementwise_cost<3>,
};

extern const LossDef mae_loss = {
    .name = "mae",
    .doc = "mean |p - l|",
    .op = "mae",
    .grad_op = "mae_grad",
    .op_with_grad = "mae_with_grad",
};

}  // namespace trainctl
