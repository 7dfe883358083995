// gelu(x) = x * Phi(x), Phi the normal distribution; approximate=tanh (Hendrycks and Gimpel 2016):
// x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3))).
#include "engine/ops/cuda/activations_cuda.cuh"
#include "engine/ops/cuda/cuda_kernel.h"
#include "engine/ops/cuda/map_cuda.cuh"

namespace trainctl {
namespace {

bool approximate(const CudaKernelCall& call) { return call.attrs.text("approximate", "none") == "tanh"; }

CudaKernel prepare_gelu(const CudaKernelCall& call) {
  return approximate(call) ? map_unary(call, GeluTanh{}, "gelu") : map_unary(call, Gelu{}, "gelu");
}

CudaKernel prepare_gelu_grad(const CudaKernelCall& call) {
  return approximate(call) ? map_binary(call, GeluTanhGrad{}, "gelu_grad") : map_binary(call, GeluGrad{}, "gelu_grad");
}

}  // namespace

extern const CudaKernels gelu_cuda = {{"gelu", prepare_gelu, kTakesF16}, {"gelu_grad", prepare_gelu_grad, kTakesF16}};

}  // namespace trainctl
