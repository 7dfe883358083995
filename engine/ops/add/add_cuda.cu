// y = a + b with numpy broadcasting.
#include "engine/ops/cuda/broadcast_cuda.cuh"
#include "engine/ops/cuda_kernels.h"

namespace trainctl {

CudaKernel prepare_add_cuda(const CudaKernelCall& call) { return map_broadcast(call, Sum{}, "add"); }

}  // namespace trainctl
