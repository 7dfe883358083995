// The largest magnitudes of tensors in 8 bits (quantise/tensor_scale.h); for the pass that emits these kernels
// (compile/fuse/narrow_products.cpp).
#pragma once

#include "engine/ops/kernel_def.h"

namespace trainctl {

/// in: x; out: [1], its largest magnitude; if it accumulates, the larger of it and the one before.
extern const KernelDef amax_kernel;
/// The end of a step of a delayed scale. in: state [2 + steps], and the largest magnitude of each rank, if there are
/// several. attrs e5m2, margin, most_recent.
extern const KernelDef update_fp8_scale_kernel;

}  // namespace trainctl
