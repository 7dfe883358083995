// Attention in bf16 by cuDNN, which reads packed heads in place.
#pragma once

#include "engine/ops/attention/attention_shape.h"
#include "engine/ops/cuda/cuda_kernel.h"

namespace trainctl {

/// Null if the library is not installed or has no engine for the call, for example because of a mask, the types or odd
/// sizes.
CudaKernel cudnn_attention(const CudaKernelCall& call, const AttentionCall& a);
CudaKernel cudnn_attention_grad(const CudaKernelCall& call, const AttentionCall& a);

}  // namespace trainctl
