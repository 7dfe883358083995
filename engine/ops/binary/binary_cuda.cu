// c = a + b, a - b, a * b, a / b, max(a, b), min(a, b) and larger(a, b) with numpy broadcasting.
#include "engine/ops/cuda/broadcast_cuda.cuh"
#include "engine/ops/cuda/cuda_kernel.h"

namespace trainctl {
namespace {

/// NaN if an operand is, as NumPy.
struct Maximum {
  __device__ float operator()(float a, float b) const { return a > b ? a : b >= a ? b : a + b; }
};
struct Minimum {
  __device__ float operator()(float a, float b) const { return a < b ? a : b <= a ? b : a + b; }
};
struct Larger {
  __device__ float operator()(float a, float b) const { return a > b ? 1.0f : a == b ? 0.5f : 0.0f; }
};

CudaKernel prepare_add(const CudaKernelCall& call) { return map_broadcast(call, Sum{}, "add"); }
CudaKernel prepare_sub(const CudaKernelCall& call) { return map_broadcast(call, Difference{}, "sub"); }
CudaKernel prepare_mul(const CudaKernelCall& call) { return map_broadcast(call, Product{}, "mul"); }
CudaKernel prepare_div(const CudaKernelCall& call) { return map_broadcast(call, Quotient{}, "div"); }
CudaKernel prepare_maximum(const CudaKernelCall& call) { return map_broadcast(call, Maximum{}, "maximum"); }
CudaKernel prepare_minimum(const CudaKernelCall& call) { return map_broadcast(call, Minimum{}, "minimum"); }
CudaKernel prepare_larger(const CudaKernelCall& call) { return map_broadcast(call, Larger{}, "larger"); }

}  // namespace

extern const CudaKernels binary_cuda = {
    {"add", prepare_add, kTakesF16},         {"sub", prepare_sub, kTakesF16},
    {"mul", prepare_mul, kTakesF16},         {"div", prepare_div, kTakesF16},
    {"maximum", prepare_maximum, kTakesF16}, {"minimum", prepare_minimum, kTakesF16},
    {"larger", prepare_larger, kTakesF16}};

}  // namespace trainctl
