// loss[1] = scale * sum (p - label)^2; dp = 2 * scale * (p - label).
#include "engine/ops/elementwise.h"
#include "engine/ops/expect.h"
#include "engine/ops/grad_builder.h"
#include "engine/ops/loss_def.h"
#include "engine/ops/pair_loss.h"

namespace trainctl {

extern const OpDef mse_op = {
    .name = "mse",
    .infer = [](Infos in, const Attrs&) { return infer_pair_loss("mse", in); },
    .rule = pair_loss_rule,
    .cost = pair_loss_cost,
    .backward =
        [](GradBuilder& g) {
          g.set_in_grad(0, "mse_grad", {g.in(0), g.in(1)}, g.attrs());
        },
    .can_accumulate = 1,
};

/// (p, label) -> dp
extern const OpDef mse_grad_op = {
    .name = "mse_grad",
    .infer = [](Infos in, const Attrs&) { return infer_pair_loss_grad("mse_grad", in); },
    .cost = elementwise_cost<3>,
};

extern const LossDef mse_loss = {
    .name = "mse",
    .doc = "mean (p - l)^2",
    .op = "mse",
    .grad_op = "mse_grad",
    .op_with_grad = "mse_with_grad",
};

}  // namespace trainctl
