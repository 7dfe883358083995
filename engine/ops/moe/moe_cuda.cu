// The kernels of the family on NVIDIA GPUs.
#include "engine/ops/cuda/cuda_kernel.h"

namespace trainctl {

extern const CudaKernels moe_cuda = {};

}  // namespace trainctl
