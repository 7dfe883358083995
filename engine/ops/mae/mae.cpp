// loss[1] = scale * sum |p - label|; dp = scale * sign(p - label), 0 if they are equal.
#include "engine/ops/elementwise.h"
#include "engine/ops/examples.h"
#include "engine/ops/expect.h"
#include "engine/ops/grad_builder.h"
#include "engine/ops/loss_def.h"
#include "engine/ops/op_family.h"
#include "engine/ops/pair_loss.h"
#include "engine/ops/program_kernels.h"

namespace trainctl {

extern const OpDef mae_grad_op;

extern const KernelDef mae_with_grad_kernel = {
    .name = "mae_with_grad",
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

extern const OpDef mae_op = {
    .name = "mae",
    .infer = [](Infos in, const Attrs&) { return infer_pair_loss("mae", in); },
    .rule = pair_loss_rule,
    .backward =
        [](GradBuilder& g) {
          g.set_in_grad(0, "mae_grad", {g.in(0), g.in(1)}, g.attrs());
        },
    .kernel = {.name = "mae",
               .accumulates = 1,
               .loss_grad = &mae_grad_op.kernel,
               .loss_with_grad = &mae_with_grad_kernel,
               .cost = pair_loss_cost,
               .example =
                   [] {
                     using namespace example;
                     return KernelExample{.what = "scale * sum |p - label|",
                                          .inputs = {{kMatrix}, f32(kMatrix)},
                                          .attrs = {{"scale", 1e-6}}};
                   }},
};

/// (p, label) -> dp
extern const OpDef mae_grad_op = {
    .name = "mae_grad",
    .infer = [](Infos in, const Attrs&) { return infer_pair_loss_grad("mae_grad", in); },
    .kernel = {.name = "mae_grad",
               .cost = elementwise_cost<3>,
               .example =
                   [] {
                     using namespace example;
                     return KernelExample{.what = "scale * sign(p - label)",
                                          .inputs = {{kMatrix}, f32(kMatrix)},
                                          .attrs = {{"scale", 1e-6}}};
                   }},
};

extern const LossDef mae_loss = {
    .name = "mae",
    .doc = "mean |p - l|",
    .op = &mae_op,
};

extern const OpFamily mae_family = {
    .ops = {&mae_op, &mae_grad_op}, .kernels = {&mae_with_grad_kernel}, .losses = {&mae_loss}};

}  // namespace trainctl
