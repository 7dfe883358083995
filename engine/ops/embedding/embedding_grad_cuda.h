// The gradient of an embedding's table.
#pragma once

#include "engine/ops/cuda/cuda_kernel.h"

namespace trainctl {

CudaKernel prepare_embedding_grad(const CudaKernelCall& call);

}  // namespace trainctl
