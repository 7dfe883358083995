// y = max(x, 0), keeps NaN.  dx = dy where y > 0.
#include "engine/ops/cuda/activations_cuda.cuh"
#include "engine/ops/cuda/cuda_kernel.h"
#include "engine/ops/cuda/map_cuda.cuh"

namespace trainctl {
namespace {

CudaKernel prepare_relu(const CudaKernelCall& call) { return map_unary(call, Relu{}, "relu"); }
CudaKernel prepare_relu_grad(const CudaKernelCall& call) { return map_binary(call, ReluGrad{}, "relu_grad"); }

}  // namespace

extern const CudaKernels relu_cuda = {{"relu", prepare_relu, kTakesF16}, {"relu_grad", prepare_relu_grad, kTakesF16}};

}  // namespace trainctl
