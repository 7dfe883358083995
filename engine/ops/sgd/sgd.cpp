// SGD as in PyTorch; the formula is in sgd_cpu.cpp. Without momentum it keeps no state. Without weight decay too, a
// step is just W -= learning_rate * dW.
#include "engine/ops/examples.h"
#include "engine/ops/op_family.h"
#include "engine/ops/optimizer_def.h"
#include "engine/ops/program_kernels.h"

namespace trainctl {
namespace {

std::vector<FieldFault> sgd_faults(const Attrs& settings) {
  if (!settings.flag("nesterov") || settings.number("momentum") != 0) return {};
  return {{"nesterov", "nesterov requires momentum, but momentum is 0", "set optimizer.momentum: 0.9"}};
}

}  // namespace

extern const KernelDef sgd_update_kernel = {
    .name = "sgd_update",
    .updates_outputs = true,
    .example =
        [] {
          using namespace example;
          return KernelExample{
              .what = "weights (, momentum) from gradients (, squared norm)",
              .inputs = {f32(kFlat)},
              .attrs = {{"momentum", 0.0}, {"nesterov", false}, {"weight_decay", 0.0}, {"clip_norm", 0.0}},
              .optional = optimizer_options(),
              .outputs = [](Infos in, const Attrs& attrs, DType dtype) {
                return updated(in, attrs.number("momentum") != 0 ? 1 : 0, dtype);
              }};
        },
};

extern const OptimizerDef sgd_optimizer = {
    .name = "sgd",
    .fields = {number("momentum", "Momentum factor: fraction of the previous update to add.")
                   .defaults(0.0)
                   .at_least(0)
                   .below(1),
               flag("nesterov", false, "Use Nesterov momentum."), weight_decay_field()},
    .faults = sgd_faults,
    .kernel = &sgd_update_kernel,
    .kernel_attrs = [](const Attrs& settings) { return settings; },
    .states = [](const Attrs& settings) -> std::vector<std::string> {
      if (settings.number("momentum") == 0) return {};
      return {"momentum"};
    },
    .is_plain_step =
        [](const Attrs& settings) { return settings.number("momentum") == 0 && settings.number("weight_decay") == 0; },
};

extern const OpFamily sgd_family = {.ops = {}, .kernels = {&sgd_update_kernel}, .optimizers = {&sgd_optimizer}};

}  // namespace trainctl
