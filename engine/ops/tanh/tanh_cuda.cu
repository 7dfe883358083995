// y = tanh x.  dx = dy * (1 - y^2).
#include "engine/ops/cuda/activations_cuda.cuh"
#include "engine/ops/cuda_kernels.h"
#include "engine/ops/cuda/map_cuda.cuh"

namespace trainctl {

CudaKernel prepare_tanh_cuda(const CudaKernelCall& call) { return map_unary(call, Tanh{}, "tanh"); }
CudaKernel prepare_tanh_grad_cuda(const CudaKernelCall& call) { return map_binary(call, TanhGrad{}, "tanh_grad"); }

}  // namespace trainctl
