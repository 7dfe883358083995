// limit_norm (train.on_spike): a squared gradient norm becomes infinite, so that updates skip the step, if it exceeds
// the square of `limit` times the usual norm, the median or the mean of the last norms that did not.
//
//   norms: [2 + window], the number of norms so far, the place of the next one, and the norms in a ring
#include "engine/ops/examples.h"
#include "engine/ops/op_family.h"
#include "engine/ops/program_kernels.h"

namespace trainctl {

extern const KernelDef limit_norm_kernel = {
    .name = "limit_norm",
    .updates_outputs = true,
    .example =
        [] {
          using namespace example;
          return KernelExample{.what = "a squared norm, infinite if it is much larger than the last ones",
                               .inputs = {},
                               .attrs = {{"limit", 10.0}, {"least", int64_t{16}}, {"mean", false}},
                               .optional = {{"unscale", true}},
                               .outputs = [](Infos, const Attrs&, DType) -> std::vector<TensorInfo> {
                                 return {{{1}}, {{66}}};
                               }};
        },
};

extern const OpFamily limit_norm_family = {.ops = {}, .kernels = {&limit_norm_kernel}, .profile_part = "gradient norm"};

}  // namespace trainctl
