// Initial weights made on the device: the formulas of runtime/initial_weights.h.
#pragma once

#include "engine/compile/program.h"
#include "engine/ops/cuda/cuda_kernel.h"

namespace trainctl::cuda {

/// Enqueues what write_initial_weights does. Constants and uniform values have the same bits as the CPU's,
/// normal ones are within an ulp of them.
void enqueue_initial_weights(const Program& program, uint64_t seed, std::byte* arena, CudaStream stream);

}  // namespace trainctl::cuda
