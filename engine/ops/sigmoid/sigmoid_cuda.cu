// y = 1 / (1 + e^-x).  dx = dy * y * (1 - y).
#include "engine/ops/cuda_kernels.h"
#include "engine/ops/map_cuda.cuh"

namespace trainctl {
namespace {

struct Sigmoid {
  __device__ float operator()(float x) const { return 1.0f / (1.0f + expf(-x)); }
};
struct SigmoidGrad {
  __device__ float operator()(float dy, float y) const { return dy * (y * (1.0f - y)); }
};

}  // namespace

CudaKernel prepare_sigmoid_cuda(const CudaKernelCall& call) { return map_unary(call, Sigmoid{}, "sigmoid"); }
CudaKernel prepare_sigmoid_grad_cuda(const CudaKernelCall& call) {
  return map_binary(call, SigmoidGrad{}, "sigmoid_grad");
}

}  // namespace trainctl
