// The gradient of attention by the tensor cores of Hopper, for bf16 and heads of 64 to 128 features: one pass over the
// pairs of queries and keys.
#pragma once

#include "engine/ops/attention/attention_shape.h"
#include "engine/ops/cuda/cuda_kernel.h"

namespace trainctl {

/// Null where it does not apply: another type, another size of heads, a mask, operands that the copy engine cannot
/// read, heads of 64 features with fewer than 4,096 keys and no window, more than 524,288 queries or keys, another GPU
/// or a small part of one. Its scratch is OnePassMemory (grad_workspace.h).
CudaKernel attention_grad_in_one_pass(const CudaKernelCall& call, const AttentionCall& a);

}  // namespace trainctl
