// LARS: SGD with momentum and a rate of its own for each parameter; the formula is in lars_rule.h.
#include "engine/ops/examples.h"
#include "engine/ops/op_family.h"
#include "engine/ops/optimizer_def.h"

namespace trainctl {

/// in: gradient, (clip norm^2 [1]); out: weight, momentum, (bf16 copy of the weight).
extern const KernelDef lars_update_kernel = {
    .name = "lars_update",
    .updates_outputs = true,
    .example =
        [] {
          using namespace example;
          return KernelExample{.what = "weights, momentum from gradients (, squared norm)",
                               .inputs = {f32(kFlat)},
                               .attrs = {{"momentum", 0.9},
                                         {"weight_decay", 0.0},
                                         {"trust_coefficient", 0.001},
                                         {"clip_norm", 0.0},
                                         {"parameters", std::vector<Ints>{{0, kRows, kCols}}}},
                               .optional =
                                   [] {
                                     Attrs options = layerwise_options();
                                     options.set("nesterov", true);
                                     return options;
                                   }(),
                               .outputs = [](Infos in, const Attrs&, DType dtype) { return updated(in, 1, dtype); }};
        },
};

extern const OptimizerDef lars_optimizer = {
    .name = "lars",
    .fields = {weight_decay_field(),
               number("momentum", "Momentum factor: fraction of the previous update to add.")
                   .defaults(0.9)
                   .at_least(0)
                   .below(1),
               flag("nesterov", false, "Use Nesterov momentum."),
               number("trust_coefficient", "The step of a parameter relative to its norm, before the learning rate.")
                   .defaults(0.001)
                   .above(0),
               adapt_field()},
    .kernel = &lars_update_kernel,
    .kernel_attrs = [](const Attrs& settings) -> Attrs {
      return {{"weight_decay", settings.number("weight_decay")},
              {"momentum", settings.number("momentum")},
              {"nesterov", settings.flag("nesterov")},
              {"trust_coefficient", settings.number("trust_coefficient")},
              {"adapt", settings.flag("adapt")}};
    },
    .states = [](const Attrs&) -> std::vector<std::string> { return {"momentum"}; },
    .needs_whole_parameters = [](const Attrs&) { return true; },
};

extern const OpFamily lars_family = {.ops = {}, .kernels = {&lars_update_kernel}, .optimizers = {&lars_optimizer}};

}  // namespace trainctl
