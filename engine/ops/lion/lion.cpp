// Lion (Chen et al., 2023): the sign of an interpolated momentum, with decoupled weight decay; the formula is in
// lion_rule.h. It keeps one moment m of each weight.
#include "engine/ops/examples.h"
#include "engine/ops/op_family.h"
#include "engine/ops/optimizer_def.h"

namespace trainctl {

/// in: gradient, (clip norm^2 [1]); out: weight, m, (bf16 copy of the weight).
extern const KernelDef lion_update_kernel = {
    .name = "lion_update",
    .updates_outputs = true,
    .example =
        [] {
          using namespace example;
          return KernelExample{.what = "weights, m from gradients (, squared norm)",
                               .inputs = {f32(kFlat)},
                               .attrs = {{"beta1", 0.9}, {"beta2", 0.99}, {"weight_decay", 0.0}, {"clip_norm", 0.0}},
                               .optional = optimizer_options(),
                               .outputs = [](Infos in, const Attrs&, DType dtype) { return updated(in, 1, dtype); }};
        },
};

extern const OptimizerDef lion_optimizer = {
    .name = "lion",
    .fields = {weight_decay_field(), numbers("betas", "Interpolation of the update and decay rate of the moment.")
                                         .defaults(std::vector<double>{0.9, 0.99})
                                         .items(2)
                                         .at_least(0)
                                         .below(1)},
    .kernel = &lion_update_kernel,
    .kernel_attrs = [](const Attrs& settings) -> Attrs {
      const std::vector<double>& betas = settings.numbers("betas");
      return {{"weight_decay", settings.number("weight_decay")}, {"beta1", betas[0]}, {"beta2", betas[1]}};
    },
    .states = [](const Attrs&) -> std::vector<std::string> { return {"m"}; },
};

extern const OpFamily lion_family = {.ops = {}, .kernels = {&lion_update_kernel}, .optimizers = {&lion_optimizer}};

}  // namespace trainctl
