// Several kernels of a program as one launch. On a GPU the cost of a small step is mostly dependent launches; compile's
// group_launches marks the instructions that may share one.
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

/// Null if these kernels have no common launch, or if one writes to memory that another uses for something else: the
/// caller then prepares each on its own.
std::optional<CudaKernel> prepare_group(std::span<const GroupedKernel> kernels);

namespace cuda {

/// Weight gradients, or SGD steps fused with them, that do not depend on one another. Null: the group has another kind,
/// or does not fit.
std::optional<CudaKernel> prepare_weight_grads(std::span<const GroupedKernel> kernels);

}  // namespace cuda

}  // namespace trainctl
