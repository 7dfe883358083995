// LAMB: Adam with a rate of its own for each parameter; the formula is in lamb_rule.h.
#include "engine/ops/adam/adam_scalars.h"
#include "engine/ops/examples.h"
#include "engine/ops/op_family.h"
#include "engine/ops/optimizer_def.h"

namespace trainctl {

/// in: gradient, (clip norm^2 [1]); out: weight, m, v, (bf16 copy of the weight).
extern const KernelDef lamb_update_kernel = {
    .name = "lamb_update",
    .updates_outputs = true,
    .example =
        [] {
          using namespace example;
          return KernelExample{.what = "weights, m, v from gradients (, squared norm)",
                               .inputs = {f32(kFlat)},
                               .attrs = {{"beta1", 0.9},
                                         {"beta2", 0.999},
                                         {"eps", 1e-6},
                                         {"weight_decay", 0.0},
                                         {"clip_norm", 0.0},
                                         {"parameters", std::vector<Ints>{{0, kRows, kCols}}}},
                               .optional = layerwise_options(),
                               .outputs = [](Infos in, const Attrs&, DType dtype) { return updated(in, 2, dtype); }};
        },
};

extern const OptimizerDef lamb_optimizer = {
    .name = "lamb",
    .fields = {weight_decay_field(),
               numbers("betas", "Decay rates of the first and second moment.")
                   .defaults(std::vector<double>{0.9, 0.999})
                   .items(2)
                   .at_least(0)
                   .below(1),
               number("eps", "Small constant in the denominator for numerical stability.").defaults(1e-6).above(0),
               adapt_field()},
    .same_in_groups = {"betas"},  // the bias corrections of a step follow from them
    .kernel = &lamb_update_kernel,
    .kernel_attrs = [](const Attrs& settings) -> Attrs {
      const std::vector<double>& betas = settings.numbers("betas");
      return {{"weight_decay", settings.number("weight_decay")},
              {"beta1", betas[0]},
              {"beta2", betas[1]},
              {"eps", settings.number("eps")},
              {"adapt", settings.flag("adapt")}};
    },
    .states = [](const Attrs&) -> std::vector<std::string> {
      return {"m", "v"};
    },
    .needs_whole_parameters = [](const Attrs&) { return true; },
    .fill_scalars = fill_bias_corrections,
};

extern const OpFamily lamb_family = {.ops = {}, .kernels = {&lamb_update_kernel}, .optimizers = {&lamb_optimizer}};

}  // namespace trainctl
