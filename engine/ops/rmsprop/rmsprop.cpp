// RMSprop as in PyTorch; the formula is in rmsprop_rule.h. It keeps the mean of each weight's squared gradients, with
// momentum the sum of updates, and if centered the mean of the gradients.
#include "engine/ops/examples.h"
#include "engine/ops/op_family.h"
#include "engine/ops/optimizer_def.h"

namespace trainctl {
namespace {

std::vector<std::string> rmsprop_states(const Attrs& settings) {
  std::vector<std::string> states = {"square_avg"};
  if (settings.number("momentum") != 0) states.emplace_back("momentum");
  if (settings.flag("centered")) states.emplace_back("grad_avg");
  return states;
}

}  // namespace

/// in: gradient, (clip norm^2 [1]); out: weight, square_avg, (momentum), (grad_avg), (bf16 copy of the weight).
extern const KernelDef rmsprop_update_kernel = {
    .name = "rmsprop_update",
    .updates_outputs = true,
    .example =
        [] {
          using namespace example;
          return KernelExample{.what = "weights, square_avg (, momentum) (, grad_avg) from gradients (, squared norm)",
                               .inputs = {f32(kFlat)},
                               .attrs = {{"alpha", 0.99},
                                         {"eps", 1e-8},
                                         {"momentum", 0.0},
                                         {"centered", false},
                                         {"weight_decay", 0.0},
                                         {"clip_norm", 0.0}},
                               .optional = optimizer_options(),
                               .outputs = [](Infos in, const Attrs& attrs, DType dtype) {
                                 return updated(in, static_cast<int>(rmsprop_states(attrs).size()), dtype);
                               }};
        },
};

extern const OptimizerDef rmsprop_optimizer = {
    .name = "rmsprop",
    .fields = {weight_decay_field(),
               number("alpha", "Decay rate of the mean of squared gradients.").defaults(0.99).at_least(0).below(1),
               number("eps", "Small constant in the denominator for numerical stability.").defaults(1e-8).above(0),
               number("momentum", "Momentum factor: fraction of the previous update to add.")
                   .defaults(0.0)
                   .at_least(0)
                   .below(1),
               flag("centered", false, "Divide by the standard deviation of the gradients instead of their norm.")},
    .kernel = &rmsprop_update_kernel,
    .kernel_attrs = [](const Attrs& settings) { return settings; },
    .states = rmsprop_states,
};

extern const OpFamily rmsprop_family = {
    .ops = {}, .kernels = {&rmsprop_update_kernel}, .optimizers = {&rmsprop_optimizer}};

}  // namespace trainctl
