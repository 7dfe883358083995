// Adagrad as in PyTorch, except that eps has the default of adam; the formula is in adagrad_cpu.cpp. It keeps the sum
// of each weight's squared gradients.
#include "engine/ops/examples.h"
#include "engine/ops/op_family.h"
#include "engine/ops/optimizer_def.h"
#include "engine/ops/program_kernels.h"

namespace trainctl {

extern const KernelDef adagrad_update_kernel = {
    .name = "adagrad_update",
    .updates_outputs = true,
    .example =
        [] {
          using namespace example;
          return KernelExample{.what = "weights, sum from gradients (, squared norm)",
                               .inputs = {f32(kFlat)},
                               .attrs = {{"eps", 1e-8}, {"weight_decay", 0.0}, {"clip_norm", 0.0}},
                               .optional = optimizer_options(),
                               .outputs = [](Infos in, const Attrs&, DType dtype) { return updated(in, 1, dtype); }};
        },
};

extern const OptimizerDef adagrad_optimizer = {
    .name = "adagrad",
    .fields = {weight_decay_field(),
               number("eps", "Small constant in the denominator for numerical stability.").defaults(1e-8).above(0)},
    .kernel = &adagrad_update_kernel,
    .kernel_attrs = [](const Attrs& settings) -> Attrs {
      return {{"weight_decay", settings.number("weight_decay")}, {"eps", settings.number("eps")}};
    },
    .states = [](const Attrs&) -> std::vector<std::string> { return {"sum"}; },
};

extern const OpFamily adagrad_family = {
    .ops = {}, .kernels = {&adagrad_update_kernel}, .optimizers = {&adagrad_optimizer}};

}  // namespace trainctl
