// Initial weights computed on the device: the formulas of runtime/initial_weights.h.
#pragma once

#include "engine/compile/program.h"
#include "engine/ops/cuda/cuda_kernel.h"
#include "engine/runtime/bound_operands.h"

namespace trainctl::cuda {

/// Enqueues the equivalent of write_initial_weights. Constant and uniform values have the same bits as the CPU's,
/// normal values are within one ulp of them.
void enqueue_initial_weights(const Program& program, uint64_t seed, const RankMemory& memory, CudaStream stream);

}  // namespace trainctl::cuda
