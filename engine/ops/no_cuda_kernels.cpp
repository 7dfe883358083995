// A build without CUDA has no CUDA kernels.
#include "engine/ops/cuda/cuda_kernel.h"

namespace trainctl {

std::span<const CudaKernelDef> all_cuda_kernels() { return {}; }
const CudaKernelDef* find_cuda_kernel(std::string_view) { return nullptr; }

}  // namespace trainctl
