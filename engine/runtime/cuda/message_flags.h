// Ranks count messages in each other's memory (copy_engines.h). One thread waits for a count, where a waiting kernel of
// NCCL takes up to 32 multiprocessors. Unlike a stream that waits for a value, it blocks no other stream.
#pragma once

#include <cstdint>

#include "engine/ops/cuda/cuda_kernel.h"

namespace trainctl::cuda {

/// Waits until `count` is at least `value`. `clears`: then sets it to 0.
void enqueue_await(uint32_t* count, uint32_t value, bool clears, CudaStream stream);

}  // namespace trainctl::cuda
