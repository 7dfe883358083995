// c = a + b, a - b, a * b and a / b with numpy broadcasting.
#include "engine/ops/cuda/broadcast_cuda.cuh"
#include "engine/ops/cuda/cuda_kernel.h"

namespace trainctl {
namespace {

CudaKernel prepare_add(const CudaKernelCall& call) { return map_broadcast(call, Sum{}, "add"); }
CudaKernel prepare_sub(const CudaKernelCall& call) { return map_broadcast(call, Difference{}, "sub"); }
CudaKernel prepare_mul(const CudaKernelCall& call) { return map_broadcast(call, Product{}, "mul"); }
CudaKernel prepare_div(const CudaKernelCall& call) { return map_broadcast(call, Quotient{}, "div"); }

}  // namespace

extern const CudaKernels binary_cuda = {
    {"add", prepare_add}, {"sub", prepare_sub}, {"mul", prepare_mul}, {"div", prepare_div}};

}  // namespace trainctl
