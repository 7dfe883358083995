// The amount of CudaScratch (cuda_kernel.h) that a kernel may request. Does not need CUDA, so that a plan can show the
// amount that the executor will allocate.
#pragma once

#include "engine/ops/kernel_def.h"

namespace trainctl {

/// cuBLASLt's workspace, as its manual recommends for Hopper.
inline constexpr int64_t kProductWorkspace = int64_t{32} << 20;
/// For split sums (split_sums_cuda.cuh): up to 2 KiB per block, for 2,048 blocks that run at once.
inline constexpr int64_t kSumsScratch = 4 << 20;

/// The most bytes that the CUDA kernel asks for on any GPU, for operands of these shapes.
inline int64_t most_cuda_scratch(const KernelDef& kernel, const std::vector<Shape>& inputs,
                                 const std::vector<Shape>& outputs) {
  return kernel.most_cuda_scratch != nullptr ? kernel.most_cuda_scratch(inputs, outputs) : kSumsScratch;
}

/// The most workspace that a plan of cuDNN may need.
inline constexpr int64_t kMostCudnnWorkspace = int64_t{256} << 20;

}  // namespace trainctl
