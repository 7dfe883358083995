// y = 1 / (1 + e^-x).  dx = dy * y * (1 - y).
#include "engine/ops/cuda/activations_cuda.cuh"
#include "engine/ops/cuda_kernels.h"
#include "engine/ops/cuda/map_cuda.cuh"

namespace trainctl {

CudaKernel prepare_sigmoid_cuda(const CudaKernelCall& call) { return map_unary(call, Sigmoid{}, "sigmoid"); }
CudaKernel prepare_sigmoid_grad_cuda(const CudaKernelCall& call) {
  return map_binary(call, SigmoidGrad{}, "sigmoid_grad");
}

}  // namespace trainctl
