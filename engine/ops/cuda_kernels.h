// The prepare function of every CUDA kernel, by op folder. all_cuda_kernels.cpp gives them their names.
#pragma once

#include "engine/ops/cuda_kernel.h"

namespace trainctl {

CudaKernel prepare_zero_cuda(const CudaKernelCall& call);

}  // namespace trainctl
