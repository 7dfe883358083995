// Schedule-free AdamW: no schedule, because the evaluated weights are an average; the formula is in
// schedule_free_adamw_rule.h.
#include "engine/ops/adam/adam_scalars.h"
#include "engine/ops/examples.h"
#include "engine/ops/op_family.h"
#include "engine/ops/optimizer_def.h"

namespace trainctl {

/// in: gradient, (clip norm^2 [1]); out: weight, z, v, average, (bf16 copy of the weight).
extern const KernelDef schedule_free_adamw_update_kernel = {
    .name = "schedule_free_adamw_update",
    .updates_outputs = true,
    .example =
        [] {
          using namespace example;
          return KernelExample{
              .what = "weights, z, v, average from gradients (, squared norm)",
              .inputs = {f32(kFlat)},
              .attrs = {{"beta1", 0.9}, {"beta2", 0.999}, {"eps", 1e-8}, {"weight_decay", 0.0}, {"clip_norm", 0.0}},
              .optional = optimizer_options(),
              .outputs = [](Infos in, const Attrs&, DType dtype) { return updated(in, 3, dtype); }};
        },
};

extern const OptimizerDef schedule_free_adamw_optimizer = {
    .name = "schedule_free_adamw",
    .fields = {weight_decay_field(),
               numbers("betas", "Interpolation between weights and average, and decay rate of the second moment.")
                   .defaults(std::vector<double>{0.9, 0.999})
                   .items(2)
                   .at_least(0)
                   .below(1),
               number("eps", "Small constant in the denominator for numerical stability.").defaults(1e-8).above(0)},
    .same_in_groups = {"betas"},  // the bias correction of a step follows from them
    .kernel = &schedule_free_adamw_update_kernel,
    .kernel_attrs = [](const Attrs& settings) -> Attrs {
      const std::vector<double>& betas = settings.numbers("betas");
      return {{"weight_decay", settings.number("weight_decay")},
              {"beta1", betas[0]},
              {"beta2", betas[1]},
              {"eps", settings.number("eps")}};
    },
    .states = [](const Attrs&) -> std::vector<std::string> {
      return {"z", "v", std::string(kAverageSlot)};
    },
    .averages_by_rate = true,
    .fill_scalars = fill_bias_corrections,
};

extern const OpFamily schedule_free_adamw_family = {
    .ops = {}, .kernels = {&schedule_free_adamw_update_kernel}, .optimizers = {&schedule_free_adamw_optimizer}};

}  // namespace trainctl
