// y = tanh x.  dx = dy * (1 - y^2).
#include "engine/ops/cuda_kernels.h"
#include "engine/ops/map_cuda.cuh"

namespace trainctl {
namespace {

struct Tanh {
  __device__ float operator()(float x) const { return tanhf(x); }
};
struct TanhGrad {
  __device__ float operator()(float dy, float y) const { return dy * (1.0f - y * y); }
};

}  // namespace

CudaKernel prepare_tanh_cuda(const CudaKernelCall& call) { return map_unary(call, Tanh{}, "tanh"); }
CudaKernel prepare_tanh_grad_cuda(const CudaKernelCall& call) { return map_binary(call, TanhGrad{}, "tanh_grad"); }

}  // namespace trainctl
