// How much CudaScratch (cuda_kernel.h) a kernel may ask for, said without CUDA: so that a plan can show it, and the
// executor takes what was shown.
#pragma once

#include "engine/ops/kernel_def.h"

namespace trainctl {

/// cuBLASLt's workspace, as its manual advises for Hopper.
inline constexpr int64_t kProductWorkspace = int64_t{32} << 20;
/// Sums that blocks share (split_sums_cuda.cuh): up to 2 KiB of each block that a card runs at once, for 2,048 of them.
inline constexpr int64_t kSumsScratch = 4 << 20;

/// The most that the CUDA kernel asks for on any card, for operands of these shapes.
inline int64_t most_cuda_scratch(const KernelDef& kernel, const std::vector<Shape>& inputs,
                                 const std::vector<Shape>& outputs) {
  return kernel.most_cuda_scratch != nullptr ? kernel.most_cuda_scratch(inputs, outputs) : kSumsScratch;
}

}  // namespace trainctl
