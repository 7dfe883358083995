// Clips the gradient of each parameter by its own norm (optimizer.clip_parameter_norm).
#include "engine/ops/examples.h"
#include "engine/ops/op_family.h"
#include "engine/ops/program_kernels.h"

namespace trainctl {

extern const KernelDef clip_parameters_kernel = {
    .name = "clip_parameters",
    .updates_outputs = true,
    .example =
        [] {
          using namespace example;
          return KernelExample{.what = "gradients *= min(1, norm / |gradient of the parameter|), in place",
                               .inputs = {f32(kFlat)},
                               .attrs = {{"norm", 1.0}, {"parameters", std::vector<Ints>{{0, kRows, kCols}}}},
                               .outputs = like_first};
        },
};

extern const OpFamily clip_parameters_family = {
    .ops = {}, .kernels = {&clip_parameters_kernel}, .profile_part = "gradient norm"};

}  // namespace trainctl
