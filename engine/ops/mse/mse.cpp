// loss[1] = scale * sum (p - label)^2; dp = 2 * scale * (p - label).
#include "engine/ops/elementwise.h"
#include "engine/ops/examples.h"
#include "engine/ops/expect.h"
#include "engine/ops/grad_builder.h"
#include "engine/ops/loss_def.h"
#include "engine/ops/op_family.h"
#include "engine/ops/pair_loss.h"
#include "engine/ops/program_kernels.h"

namespace trainctl {

extern const OpDef mse_grad_op;

extern const KernelDef mse_with_grad_kernel = {
    .name = "mse_with_grad",
    .accumulates = 1,
    .in_place = InPlace::last_on_first,
    .launch_role = LaunchRole::loss,
    .example =
        [] {
          using namespace example;
          return KernelExample{.what = "loss and gradient in one pass",
                               .inputs = {{kMatrix}, f32(kMatrix)},
                               .attrs = {{"scale", 1e-6}},
                               .outputs = loss_and_gradient};
        },
};

extern const OpDef mse_op = {
    .name = "mse",
    .infer = [](Infos in, const Attrs&) { return infer_pair_loss("mse", in); },
    .rule = pair_loss_rule,
    .backward =
        [](GradBuilder& g) {
          g.set_in_grad(0, "mse_grad", {g.in(0), g.in(1)}, g.attrs());
        },
    .kernel = {.name = "mse",
               .accumulates = 1,
               .loss_grad = &mse_grad_op.kernel,
               .loss_with_grad = &mse_with_grad_kernel,
               .cost = pair_loss_cost,
               .example =
                   [] {
                     using namespace example;
                     return KernelExample{.what = "scale * sum (p - label)^2",
                                          .inputs = {{kMatrix}, f32(kMatrix)},
                                          .attrs = {{"scale", 1e-6}}};
                   }},
};

/// (p, label) -> dp
extern const OpDef mse_grad_op = {
    .name = "mse_grad",
    .infer = [](Infos in, const Attrs&) { return infer_pair_loss_grad("mse_grad", in); },
    .kernel = {.name = "mse_grad",
               .cost = elementwise_cost<3>,
               .example =
                   [] {
                     using namespace example;
                     return KernelExample{.what = "2 * scale * (p - label)",
                                          .inputs = {{kMatrix}, f32(kMatrix)},
                                          .attrs = {{"scale", 1e-6}}};
                   }},
};

extern const LossDef mse_loss = {
    .name = "mse",
    .doc = "mean (p - l)^2",
    .op = &mse_op,
};

extern const OpFamily mse_family = {
    .ops = {&mse_op, &mse_grad_op}, .kernels = {&mse_with_grad_kernel}, .losses = {&mse_loss}};

}  // namespace trainctl
