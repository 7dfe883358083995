// Kernels of GPUs that do not take f16 read and write f32 and bf16. For them, a program's f16 operands become f32
// copies in the scratch memory; matrix products then round factors to TF32, which has all bits of f16.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/ops/cuda/cuda_kernel.h"
#include "engine/ops/kernel_def.h"

namespace trainctl::cuda {

/// The kernel itself if it takes the call's f16 operands; else the kernel with f32 copies of them at `copies`
/// (ScratchUse::copies), which are filled before it runs and rounded back after it. An optimizer's f16 copy of the
/// weights is made of the weights once they are updated.
CudaKernel prepare_with_float_copies(const CudaKernelDef& def, const KernelDef& kernel, CudaKernelCall call,
                                     std::byte* copies);

// f16_operands_cuda.cu

void enqueue_widen(const uint16_t* halves, float* floats, int64_t count, CudaStream stream);
/// Rounds to nearest, ties to even.
void enqueue_narrow(const float* floats, uint16_t* halves, int64_t count, CudaStream stream);

}  // namespace trainctl::cuda
