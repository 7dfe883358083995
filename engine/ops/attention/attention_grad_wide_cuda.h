// The gradient of attention by the tensor cores of Hopper, for bf16 and heads of 136 to 256 features: two kernels,
// between which the slopes of the scores are in memory.
#pragma once

#include "engine/ops/attention/attention_shape.h"
#include "engine/ops/cuda/cuda_kernel.h"

namespace trainctl {

/// Null where it does not apply: another type, another size of heads, a mask, operands that the copy engine cannot
/// read, slopes of one kv head that exceed the limit of the workspace, another GPU. Its scratch is WideMemory
/// (grad_workspace.h).
CudaKernel attention_grad_of_wide_heads(const CudaKernelCall& call, const AttentionCall& a);

}  // namespace trainctl
