// CPU kernels compute on f32. For them, a program's bf16 operands become f32 copies.
#pragma once

#include "engine/ops/kernel.h"

namespace trainctl {

/// The kernel with f32 copies of its bf16 operands: filled before it runs, rounded back after it. An optimizer's
/// bf16 copy of the weights, which CPU kernels write themselves, is passed as it is.
CpuKernel prepare_with_bf16_operands(const CpuKernelDef& def, KernelCall call);

}  // namespace trainctl
