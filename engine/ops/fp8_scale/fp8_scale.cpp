// Scales of whole tensors in 8 bits: see fp8_scale.h and quantise/tensor_scale.h.
#include "engine/ops/fp8_scale/fp8_scale.h"

#include "engine/ops/examples.h"
#include "engine/ops/op_family.h"

namespace trainctl {
namespace {

/// Scratch memory in bytes: the largest magnitude that each block of threads finds.
int64_t amax_scratch(const std::vector<Shape>&, const std::vector<Shape>&) { return 4096; }

}  // namespace

extern const KernelDef amax_kernel = {
    .name = "amax",
    .accumulates = 1,
    .most_cuda_scratch = amax_scratch,
    .example =
        [] {
          using namespace example;
          return KernelExample{.what = "the largest magnitude of x", .inputs = {{kMatrix}}, .outputs = one_number};
        },
};

extern const KernelDef update_fp8_scale_kernel = {
    .name = "update_fp8_scale",
    .updates_input = 1,
    .example =
        [] {
          using namespace example;
          return KernelExample{.what = "the scale of a tensor in 8 bits from its last largest magnitudes",
                               .inputs = {f32({2 + 1024}), f32({8})},
                               .attrs = {{"margin", int64_t{0}}},
                               .optional = {{"e5m2", true}, {"most_recent", true}},
                               .outputs = [](Infos, const Attrs&, DType) -> std::vector<TensorInfo> { return {}; }};
        },
};

extern const OpFamily fp8_scale_family = {
    .ops = {}, .kernels = {&amax_kernel, &update_fp8_scale_kernel}, .profile_part = "quantise"};

}  // namespace trainctl
