// Attention on GPUs whose scores have additional terms, or whose weights are dropped (score_terms.h).
#pragma once

#include "engine/ops/attention/attention_shape.h"
#include "engine/ops/cuda/cuda_kernel.h"

namespace trainctl {

CudaKernel attention_with_terms(const CudaKernelCall& call, const AttentionCall& a);
CudaKernel attention_grad_with_terms(const CudaKernelCall& call, const AttentionCall& a);
CudaKernel prepare_attention_score_bias_grad(const CudaKernelCall& call);

}  // namespace trainctl
