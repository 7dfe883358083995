// y = a * b with numpy broadcasting.
#include "engine/ops/cuda/broadcast_cuda.cuh"
#include "engine/ops/cuda/cuda_kernel.h"

namespace trainctl {
namespace {

CudaKernel prepare_mul(const CudaKernelCall& call) { return map_broadcast(call, Product{}, "mul"); }

}  // namespace

extern const CudaKernels mul_cuda = {{"mul", prepare_mul}};

}  // namespace trainctl
