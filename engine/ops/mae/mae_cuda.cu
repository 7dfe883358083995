// loss = scale * sum |p - l|.  dp = scale * sign(p - l), 0 where they are equal.
#include "engine/ops/cuda/cuda_kernel.h"
#include "engine/ops/cuda/pair_loss_cuda.cuh"

namespace trainctl {
namespace {

struct Mae {
  float scale;
  __device__ float loss(float off) const { return fabsf(off); }
  __device__ float grad(float off) const {
    return off > 0.0f ? scale : off < 0.0f ? -scale : off;
  }  // a NaN passes through
  __device__ float operator()(float p, float l) const { return grad(p - l); }
};

Mae mae_of(const CudaKernelCall& call) { return {static_cast<float>(call.attrs.number("scale", 1.0))}; }

CudaKernel prepare_mae(const CudaKernelCall& call) { return prepare_pair_loss<false>(call, mae_of(call), "mae"); }
CudaKernel prepare_mae_grad(const CudaKernelCall& call) { return map_binary(call, mae_of(call), "mae_grad"); }
CudaKernel prepare_mae_with_grad(const CudaKernelCall& call) {
  return prepare_pair_loss<true>(call, mae_of(call), "mae_with_grad");
}

}  // namespace

extern const CudaKernels mae_cuda = {
    {"mae", prepare_mae}, {"mae_grad", prepare_mae_grad}, {"mae_with_grad", prepare_mae_with_grad}};

}  // namespace trainctl
