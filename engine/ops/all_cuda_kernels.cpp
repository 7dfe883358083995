// The list of CUDA kernels: names as in all_cpu_kernels.cpp.
#include "engine/ops/cuda_kernels.h"

namespace trainctl {
namespace {

constexpr CudaKernelDef kKernels[] = {
    {"zero", prepare_zero_cuda},
};

}  // namespace

std::span<const CudaKernelDef> all_cuda_kernels() { return kKernels; }

const CudaKernelDef* find_cuda_kernel(std::string_view name) {
  for (const CudaKernelDef& kernel : kKernels) {
    if (name == kernel.name) return &kernel;
  }
  return nullptr;
}

}  // namespace trainctl
