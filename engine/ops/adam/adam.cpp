// Adam and AdamW as in PyTorch; the formula is in adam_cpu.cpp. Both keep two moments m and v of each weight, with
// amsgrad also the largest v. AdamW subtracts the weight decay from the weight itself (attr decoupled).
#include "engine/ops/adam/adam_scalars.h"
#include "engine/ops/examples.h"
#include "engine/ops/op_family.h"
#include "engine/ops/optimizer_def.h"
#include "engine/ops/program_kernels.h"

namespace trainctl {
namespace {

std::vector<Field> adam_fields() {
  return {weight_decay_field(),
          numbers("betas", "Decay rates of the first and second moment.")
              .defaults(std::vector<double>{0.9, 0.999})
              .items(2)
              .at_least(0)
              .below(1),
          number("eps", "Small constant in the denominator for numerical stability.").defaults(1e-8).above(0),
          flag("amsgrad", false, "Divide by the largest second moment so far (AMSGrad).")};
}

Attrs adam_attrs(const Attrs& settings, bool decoupled) {
  const std::vector<double>& betas = settings.numbers("betas");
  Attrs attrs{{"weight_decay", settings.number("weight_decay")},
              {"beta1", betas[0]},
              {"beta2", betas[1]},
              {"eps", settings.number("eps")},
              {"decoupled", decoupled}};
  if (settings.flag("amsgrad")) attrs.set("amsgrad", true);
  return attrs;
}

std::vector<std::string> moments(const Attrs& settings) {
  if (settings.flag("amsgrad")) return {"m", "v", "max_v"};
  return {"m", "v"};
}

Attrs adam_options() {
  Attrs options = optimizer_options();
  options.set("amsgrad", true);
  return options;
}

}  // namespace

extern const KernelDef adam_update_kernel = {
    .name = "adam_update",
    .updates_outputs = true,
    .example =
        [] {
          using namespace example;
          return KernelExample{.what = "weights, m, v (, max_v) from gradients (, squared norm)",
                               .inputs = {f32(kFlat)},
                               .attrs = {{"beta1", 0.9},
                                         {"beta2", 0.999},
                                         {"eps", 1e-8},
                                         {"weight_decay", 0.0},
                                         {"decoupled", false},
                                         {"clip_norm", 0.0}},
                               .optional = adam_options(),
                               .outputs = [](Infos in, const Attrs& attrs, DType dtype) {
                                 return updated(in, attrs.flag("amsgrad") ? 3 : 2, dtype);
                               }};
        },
};

extern const OptimizerDef adam_optimizer = {
    .name = "adam",
    .fields = adam_fields(),
    .same_in_groups = {"betas"},  // the bias corrections of a step follow from them
    .kernel = &adam_update_kernel,
    .kernel_attrs = [](const Attrs& settings) { return adam_attrs(settings, false); },
    .states = moments,
    .fill_scalars = fill_bias_corrections,
};

extern const OptimizerDef adamw_optimizer = {
    .name = "adamw",
    .fields = adam_fields(),
    .same_in_groups = {"betas"},  // the bias corrections of a step follow from them
    .kernel = &adam_update_kernel,
    .kernel_attrs = [](const Attrs& settings) { return adam_attrs(settings, true); },
    .states = moments,
    .fill_scalars = fill_bias_corrections,
};

extern const OpFamily adam_family = {
    .ops = {}, .kernels = {&adam_update_kernel}, .optimizers = {&adam_optimizer, &adamw_optimizer}};

}  // namespace trainctl
