// y = max(x, 0); a NaN stays one.  dx = dy where y > 0.
#include "engine/ops/cuda_kernels.h"
#include "engine/ops/map_cuda.cuh"

namespace trainctl {
namespace {

struct Relu {
  __device__ float operator()(float x) const { return x < 0.0f ? 0.0f : x; }
};
struct ReluGrad {
  __device__ float operator()(float dy, float y) const { return y > 0.0f ? dy : 0.0f; }
};

}  // namespace

CudaKernel prepare_relu_cuda(const CudaKernelCall& call) { return map_unary(call, Relu{}, "relu"); }
CudaKernel prepare_relu_grad_cuda(const CudaKernelCall& call) { return map_binary(call, ReluGrad{}, "relu_grad"); }

}  // namespace trainctl
