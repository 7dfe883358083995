// The term of attention sinks on GPUs (sinks.h).
#pragma once

#include "engine/ops/attention/attention_shape.h"
#include "engine/ops/cuda/cuda_kernel.h"

namespace trainctl {

/// `attention`, followed by the term of the sinks. It must give rows that see no key the log kNoKeys.
CudaKernel with_sinks(const CudaKernelCall& call, const AttentionCall& a, CudaKernel attention);

CudaKernel prepare_attention_sinks_grad(const CudaKernelCall& call);

}  // namespace trainctl
