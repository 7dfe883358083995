// The small kernels around a step: they bring its data and scalars in, and its loss out, by themselves, so that one
// captured graph serves every step. A step's slot is its number in the run of this process, modulo `slots`.
//
//   staging (device)   [ slot 0: inputs | StepScalars ][ slot 1: … ]     filled by the copy stream
//   finished (pinned)  [ slot 0: loss, step ][ slot 1: … ]               read by the host
#pragma once

#include <cstdint>

#include "engine/ops/cuda_kernel.h"

namespace trainctl::cuda {

/// What a finished step left. The host waits for `step`, which is written last.
struct Finished {
  float loss;
  alignas(8) volatile uint64_t step;  ///< the number of the step that was finished last in this slot, from 1
};

/// Where a rank is, for the host: written by the device into pinned memory as step << 32 | instruction.
using PositionWord = volatile uint64_t;

/// Where a step finds its slot.
struct Slots {
  const uint64_t* steps_done = nullptr;  ///< device memory; of this process
  int64_t slots = 1;
};

struct Staging : Slots {
  const std::byte* base = nullptr;
  int64_t stride = 0;
  int64_t scalars = 0;  ///< offset in a slot
};

struct InputCopy {
  int64_t from = 0;  ///< offset in a slot: of the data, or of int32 numbers of rows of the table
  void* to = nullptr;
  int64_t bytes = 0;  ///< in all
  const std::byte* table = nullptr;
  int64_t row_bytes = 0;  ///< of the table
};

/// Copies that are done at the start of a step, along with the scalars.
struct FirstCopies {
  static constexpr int kMost = 8;
  InputCopy list[kMost];
  int count = 0;
};

void enqueue_begin_step(const Staging& staging, const FirstCopies& copies, StepScalars* scalars, PositionWord* position,
                        CudaStream stream);
void enqueue_load(const Staging& staging, const InputCopy& copy, CudaStream stream);
/// `to` is pinned memory with `stride` bytes a slot.
void enqueue_print(const Slots& slots, const void* from, std::byte* to, int64_t stride, int64_t bytes,
                   CudaStream stream);
void enqueue_position(const StepScalars* scalars, int instruction, PositionWord* position, CudaStream stream);
/// `loss` is null in a program without one.
void enqueue_end_step(uint64_t* steps_done, int64_t slots, const float* loss, Finished* finished, CudaStream stream);

}  // namespace trainctl::cuda
