// loss = scale * sum (p - l)^2.  dp = 2 * scale * (p - l).
#include "engine/ops/cuda/cuda_kernel.h"
#include "engine/ops/cuda/pair_loss_cuda.cuh"

namespace trainctl {
namespace {

struct Mse {
  float twice_scale;
  __device__ float loss(float off) const { return off * off; }
  __device__ float grad(float off) const { return twice_scale * off; }
  __device__ float operator()(float p, float l) const { return grad(p - l); }
};

Mse mse_of(const CudaKernelCall& call) { return {static_cast<float>(2.0 * call.attrs.number("scale", 1.0))}; }

CudaKernel prepare_mse(const CudaKernelCall& call) { return prepare_pair_loss<false>(call, mse_of(call), "mse"); }
CudaKernel prepare_mse_grad(const CudaKernelCall& call) { return map_binary(call, mse_of(call), "mse_grad"); }
CudaKernel prepare_mse_with_grad(const CudaKernelCall& call) {
  return prepare_pair_loss<true>(call, mse_of(call), "mse_with_grad");
}

}  // namespace

extern const CudaKernels mse_cuda = {
    {"mse", prepare_mse}, {"mse_grad", prepare_mse_grad}, {"mse_with_grad", prepare_mse_with_grad}};

}  // namespace trainctl
