// The gradient of attention by the tensor cores of Hopper, for bf16 and heads of 64 features.
#pragma once

#include "engine/ops/attention/attention_shape.h"
#include "engine/ops/cuda/cuda_kernel.h"

namespace trainctl {

/// Null where it does not apply: another type, another size of heads, a mask, operands that the copy engine cannot
/// read, another GPU. Its scratch is two floats for each row of queries, the rows of a head rounded up to 64.
CudaKernel attention_grad_by_groups(const CudaKernelCall& call, const AttentionCall& a);

}  // namespace trainctl
