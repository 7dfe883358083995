// y = max(x, 0); a NaN stays one.  dx = dy where y > 0.
#include "engine/ops/cuda/activations_cuda.cuh"
#include "engine/ops/cuda_kernels.h"
#include "engine/ops/cuda/map_cuda.cuh"

namespace trainctl {

CudaKernel prepare_relu_cuda(const CudaKernelCall& call) { return map_unary(call, Relu{}, "relu"); }
CudaKernel prepare_relu_grad_cuda(const CudaKernelCall& call) { return map_binary(call, ReluGrad{}, "relu_grad"); }

}  // namespace trainctl
