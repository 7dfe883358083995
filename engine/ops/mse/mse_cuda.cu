// loss = scale * sum (p - l)^2.  dp = 2 * scale * (p - l).
#include "engine/ops/cuda_kernels.h"
#include "engine/ops/pair_loss_cuda.cuh"

namespace trainctl {
namespace {

struct Square {
  __device__ float operator()(float off) const { return off * off; }
};
struct MseGrad {
  float scale;
  __device__ float operator()(float p, float l) const { return scale * (p - l); }
};

}  // namespace

CudaKernel prepare_mse_cuda(const CudaKernelCall& call) { return prepare_pair_loss(call, Square{}, "mse"); }

CudaKernel prepare_mse_grad_cuda(const CudaKernelCall& call) {
  return map_binary(call, MseGrad{static_cast<float>(2.0 * call.attrs.number("scale", 1.0))}, "mse_grad");
}

}  // namespace trainctl
