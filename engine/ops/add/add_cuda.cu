// y = a + b with numpy broadcasting.
#include "engine/ops/cuda/broadcast_cuda.cuh"
#include "engine/ops/cuda/cuda_kernel.h"

namespace trainctl {
namespace {

CudaKernel prepare_add(const CudaKernelCall& call) { return map_broadcast(call, Sum{}, "add"); }

}  // namespace

extern const CudaKernels add_cuda = {{"add", prepare_add}};

}  // namespace trainctl
