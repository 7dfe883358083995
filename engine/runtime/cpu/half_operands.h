// CPU kernels compute on f32. For them, a program's bf16 and f16 operands become f32 copies.
#pragma once

#include "engine/ops/kernel.h"

namespace trainctl {

/// The kernel with f32 copies of its 16-bit operands: filled before it runs, rounded back after it. An optimizer's
/// 16-bit copy of the weights, which CPU kernels write themselves, is passed as it is.
CpuKernel prepare_with_float_copies(const CpuKernelDef& def, KernelCall call);

}  // namespace trainctl
