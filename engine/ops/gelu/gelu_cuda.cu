// gelu(x) = x * Phi(x), Phi the normal distribution; approximate=tanh (Hendrycks and Gimpel 2016):
// x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3))).
#include "engine/ops/cuda_kernels.h"
#include "engine/ops/map_cuda.cuh"

namespace trainctl {
namespace {

constexpr float kInverseSqrt2 = 0.70710678118654752f;
constexpr float kInverseSqrt2Pi = 0.39894228040143268f;
constexpr float kSqrt2OverPi = 0.79788456080286536f;
constexpr float kCubic = 0.044715f;

struct Exact {
  __device__ float operator()(float x) const { return 0.5f * x * (1.0f + erff(x * kInverseSqrt2)); }
};
struct ExactGrad {
  __device__ float operator()(float dy, float x) const {
    const float phi = kInverseSqrt2Pi * expf(-0.5f * x * x);
    return dy * (0.5f * (1.0f + erff(x * kInverseSqrt2)) + x * phi);
  }
};
struct WithTanh {
  __device__ float operator()(float x) const {
    return 0.5f * x * (1.0f + tanhf(kSqrt2OverPi * (x + kCubic * x * x * x)));
  }
};
struct WithTanhGrad {
  __device__ float operator()(float dy, float x) const {
    const float t = tanhf(kSqrt2OverPi * (x + kCubic * x * x * x));
    const float inner = kSqrt2OverPi * (1.0f + 3.0f * kCubic * x * x);
    return dy * (0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * inner);
  }
};

bool approximate(const CudaKernelCall& call) { return call.attrs.text("approximate", "none") == "tanh"; }

}  // namespace

CudaKernel prepare_gelu_cuda(const CudaKernelCall& call) {
  return approximate(call) ? map_unary(call, WithTanh{}, "gelu") : map_unary(call, Exact{}, "gelu");
}

CudaKernel prepare_gelu_grad_cuda(const CudaKernelCall& call) {
  return approximate(call) ? map_binary(call, WithTanhGrad{}, "gelu_grad") : map_binary(call, ExactGrad{}, "gelu_grad");
}

}  // namespace trainctl
