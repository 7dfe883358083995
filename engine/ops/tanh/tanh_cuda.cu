// y = tanh x.  dx = dy * (1 - y^2).
#include "engine/ops/cuda/activations_cuda.cuh"
#include "engine/ops/cuda/cuda_kernel.h"
#include "engine/ops/cuda/map_cuda.cuh"

namespace trainctl {
namespace {

CudaKernel prepare_tanh(const CudaKernelCall& call) { return map_unary(call, Tanh{}, "tanh"); }
CudaKernel prepare_tanh_grad(const CudaKernelCall& call) { return map_binary(call, TanhGrad{}, "tanh_grad"); }

}  // namespace

extern const CudaKernels tanh_cuda = {{"tanh", prepare_tanh, kTakesF16}, {"tanh_grad", prepare_tanh_grad, kTakesF16}};

}  // namespace trainctl
