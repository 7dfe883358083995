// A build without CUDA has no CUDA kernels.
#include "engine/ops/cuda/cuda_kernel.h"

namespace trainctl {

bool has_cuda_kernels() { return false; }
const CudaKernelDef* find_cuda_kernel(std::string_view) { return nullptr; }

}  // namespace trainctl
