// y = 1 / (1 + e^-x).  dx = dy * y * (1 - y).
#include "engine/ops/cuda/activations_cuda.cuh"
#include "engine/ops/cuda/cuda_kernel.h"
#include "engine/ops/cuda/map_cuda.cuh"

namespace trainctl {
namespace {

CudaKernel prepare_sigmoid(const CudaKernelCall& call) { return map_unary(call, Sigmoid{}, "sigmoid"); }
CudaKernel prepare_sigmoid_grad(const CudaKernelCall& call) { return map_binary(call, SigmoidGrad{}, "sigmoid_grad"); }

}  // namespace

extern const CudaKernels sigmoid_cuda = {{"sigmoid", prepare_sigmoid, kTakesF16},
                                         {"sigmoid_grad", prepare_sigmoid_grad, kTakesF16}};

}  // namespace trainctl
