// The average of the weights over steps (optimizer.average): average += rate (weights - average), with the rate of the
// step (StepScalars::average_rate). A validation exchanges the two before its first batch and after its last. The outer
// weights of parallel.local_steps are in the place of an average, and outer_update changes them.
#include "engine/ops/examples.h"
#include "engine/ops/op_family.h"
#include "engine/ops/program_kernels.h"

namespace trainctl {

extern const KernelDef average_weights_kernel = {
    .name = "average_weights",
    .updates_outputs = true,
    .example =
        [] {
          using namespace example;
          return KernelExample{
              .what = "average += rate (weights - average)", .inputs = {f32(kFlat)}, .outputs = like_first};
        },
};

extern const KernelDef exchange_average_kernel = {
    .name = "exchange_average",
    .updates_outputs = true,
    .example =
        [] {
          using namespace example;
          return KernelExample{
              .what = "exchanges weights and their average; a third output is a bf16 copy of the weights",
              .inputs = {f32(kFlat)},
              .outputs = [](Infos in, const Attrs&, DType dtype) { return updated(in, 1, dtype); },
              .reads_inputs = false};
        },
};

extern const KernelDef outer_update_kernel = {
    .name = "outer_update",
    .updates_outputs = true,
    .example =
        [] {
          using namespace example;
          return KernelExample{.what = "SGD of parallel.outer; a fourth output is a bf16 copy of the weights",
                               .inputs = {f32(kFlat)},
                               .attrs = {{"learning_rate", 0.7}, {"momentum", 0.9}, {"nesterov", true}, {"scale", 0.5}},
                               .outputs = [](Infos in, const Attrs&, DType dtype) { return updated(in, 2, dtype); }};
        },
};

extern const OpFamily average_family = {
    .ops = {}, .kernels = {&average_weights_kernel, &exchange_average_kernel, &outer_update_kernel}};

}  // namespace trainctl
