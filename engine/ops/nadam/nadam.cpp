// NAdam as in PyTorch: Adam with Nesterov momentum; the formula is in nadam_rule.h. It keeps two moments m and v of
// each weight.
#include <cmath>

#include "engine/ops/examples.h"
#include "engine/ops/op_family.h"
#include "engine/ops/optimizer_def.h"

namespace trainctl {
namespace {

/// adam_bias1 = 1 - product of mu(1) to mu(t). Factors beyond those that make the product 0 in f32 change nothing.
void fill_nadam_scalars(const Attrs& settings, int64_t update, StepScalars& scalars) {
  const std::vector<double>& betas = settings.numbers("betas");
  const double decay = std::pow(0.96, settings.number("momentum_decay"));
  double product = 1, power = 1;
  for (int64_t t = 1; t <= update && product > 1e-12; ++t) {
    power *= decay;
    product *= betas[0] * (1.0 - 0.5 * power);
  }
  scalars.adam_bias1 = static_cast<float>(1.0 - product);
  scalars.adam_bias2 = static_cast<float>(1.0 - std::pow(betas[1], static_cast<double>(update)));
}

}  // namespace

/// in: gradient, (clip norm^2 [1]); out: weight, m, v, (bf16 copy of the weight).
extern const KernelDef nadam_update_kernel = {
    .name = "nadam_update",
    .updates_outputs = true,
    .example =
        [] {
          using namespace example;
          return KernelExample{.what = "weights, m, v from gradients (, squared norm)",
                               .inputs = {f32(kFlat)},
                               .attrs = {{"beta1", 0.9},
                                         {"beta2", 0.999},
                                         {"eps", 1e-8},
                                         {"momentum_decay", 0.004},
                                         {"weight_decay", 0.0},
                                         {"decoupled", false},
                                         {"clip_norm", 0.0}},
                               .optional = optimizer_options(),
                               .outputs = [](Infos in, const Attrs&, DType dtype) { return updated(in, 2, dtype); }};
        },
};

extern const OptimizerDef nadam_optimizer = {
    .name = "nadam",
    .fields =
        {weight_decay_field(),
         numbers("betas", "Decay rates of the first and second moment.")
             .defaults(std::vector<double>{0.9, 0.999})
             .items(2)
             .at_least(0)
             .below(1),
         number("eps", "Small constant in the denominator for numerical stability.").defaults(1e-8).above(0),
         number("momentum_decay", "Rate at which the momentum rises to its final value.").defaults(0.004).at_least(0),
         flag("decoupled_weight_decay", false, "Decoupled weight decay, as in adamw.")},
    .same_in_groups = {"betas", "momentum_decay"},  // the scalars of a step follow from them
    .kernel = &nadam_update_kernel,
    .kernel_attrs = [](const Attrs& settings) -> Attrs {
      const std::vector<double>& betas = settings.numbers("betas");
      return {{"weight_decay", settings.number("weight_decay")},
              {"beta1", betas[0]},
              {"beta2", betas[1]},
              {"eps", settings.number("eps")},
              {"momentum_decay", settings.number("momentum_decay")},
              {"decoupled", settings.flag("decoupled_weight_decay")}};
    },
    .states = [](const Attrs&) -> std::vector<std::string> {
      return {"m", "v"};
    },
    .fill_scalars = fill_nadam_scalars,
};

extern const OpFamily nadam_family = {.ops = {}, .kernels = {&nadam_update_kernel}, .optimizers = {&nadam_optimizer}};

}  // namespace trainctl
