// loss = scale * sum |p - l|.  dp = scale * sign(p - l), 0 where they are equal.
#include "engine/ops/cuda_kernels.h"
#include "engine/ops/pair_loss_cuda.cuh"

namespace trainctl {
namespace {

struct Distance {
  __device__ float operator()(float off) const { return fabsf(off); }
};
struct MaeGrad {
  float scale;
  __device__ float operator()(float p, float l) const {
    const float off = p - l;  // 0, or a NaN, goes through
    return off > 0.0f ? scale : off < 0.0f ? -scale : off;
  }
};

}  // namespace

CudaKernel prepare_mae_cuda(const CudaKernelCall& call) { return prepare_pair_loss(call, Distance{}, "mae"); }

CudaKernel prepare_mae_grad_cuda(const CudaKernelCall& call) {
  return map_binary(call, MaeGrad{static_cast<float>(call.attrs.number("scale", 1.0))}, "mae_grad");
}

}  // namespace trainctl
