// CPU kernels compute on f32. What a program has in bf16 is an f32 copy to them.
#pragma once

#include "engine/ops/kernel.h"

namespace trainctl {

/// The kernel with its bf16 operands as f32 copies: filled before it runs, and rounded to their place after. An
/// optimizer's bf16 copy of the weights, which CPU kernels write themselves, stays as it is.
CpuKernel prepare_with_bf16_operands(const CpuKernelDef& def, KernelCall call);

}  // namespace trainctl
