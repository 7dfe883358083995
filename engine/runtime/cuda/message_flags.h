// Ranks count messages in each other's memory: one rank writes how many, the other waits for a number. One thread does
// so, where a waiting kernel of NCCL takes up to 32 multiprocessors. Unlike a stream that waits for a value, it blocks
// no other stream.
#pragma once

#include <cstdint>

#include "engine/ops/cuda/cuda_kernel.h"

namespace trainctl::cuda {

/// Sets `cleared`, which may be null, to 0, then `count` to `value`. A rank that sees the value sees all earlier work
/// of the stream.
void enqueue_count(uint32_t* cleared, uint32_t* count, uint32_t value, CudaStream stream);
/// Waits until `count` is at least `value`. `clears`: then sets it to 0.
void enqueue_await(uint32_t* count, uint32_t value, bool clears, CudaStream stream);

}  // namespace trainctl::cuda
