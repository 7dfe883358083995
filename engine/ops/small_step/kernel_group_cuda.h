// Several kernels of a program as one launch. What small steps cost on a GPU is launches that wait for one another;
// compile's group_launches marks the instructions that may share one.
#pragma once

#include <optional>
#include <span>

#include "engine/ops/cuda/cuda_kernel.h"
#include "engine/ops/kernel_def.h"

namespace trainctl {

struct GroupedKernel {
  const KernelDef* kernel;
  CudaKernelCall call;
};

/// Null where these kernels have no common launch, or where one writes to memory that another uses for something
/// else: then each is prepared by itself.
std::optional<CudaKernel> prepare_group(std::span<const GroupedKernel> kernels);

}  // namespace trainctl
