// sum_squares: out[1] = sum in^2, one term of the gradients' global norm. count_not_finite: out[1] = 0 if in[1] is finite,
// else 1.
#include "engine/ops/examples.h"
#include "engine/ops/op_family.h"
#include "engine/ops/program_kernels.h"

namespace trainctl {

extern const KernelDef sum_squares_kernel = {
    .name = "sum_squares",
    .accumulates = 1,
    .example =
        [] {
          using namespace example;
          return KernelExample{.what = "sum of in^2", .inputs = {f32(kFlat)}, .outputs = one_number};
        },
};

extern const KernelDef count_not_finite_kernel = {
    .name = "count_not_finite",
    .example =
        [] {
          using namespace example;
          return KernelExample{.what = "0 if in is finite, else 1", .inputs = {f32({1})}, .outputs = one_number};
        },
};

extern const OpFamily sum_squares_family = {
    .ops = {}, .kernels = {&sum_squares_kernel, &count_not_finite_kernel}, .profile_part = "gradient norm"};

}  // namespace trainctl
