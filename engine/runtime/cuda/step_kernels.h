// The small kernels around a step: they bring its data and scalars in, and its loss out, by themselves, so that one
// captured graph serves every step, or several that follow from one another. A step's slot is its number in the run of
// this process, modulo `slots`.
//
//   staging (device)   [ slot 0: inputs | StepScalars ][ slot 1: … ]     filled by the copy stream
//   finished (pinned)  [ slot 0: step, loss ][ slot 1: … ]               read by the host
//
//   begin ─ step ─ begin ─ step ─ begin ─ step ─ end     one launch between two steps: it keeps the loss of the one and
//                                                        brings in the other's data. The host hears of all at the end
#pragma once

#include <cstdint>

#include "engine/ops/cuda/cuda_kernel.h"

namespace trainctl::cuda {

/// What the step left that was finished last in a slot, for the host, which waits for it: the step's number, from 1, <<
/// 32 | the bits of its loss. One word, so that it arrives whole.
using FinishedWord = volatile uint64_t;

/// Where a rank is, for the host: written by the device into pinned memory as step << 32 | instruction.
using PositionWord = volatile uint64_t;

/// Of steps that are enqueued as one.
inline constexpr int kMostStepsAtOnce = 32;

/// Device memory: how far this process's steps are.
struct StepCounter {
  uint64_t done;                   ///< steps of which the host knows
  float losses[kMostStepsAtOnce];  ///< of the steps since
};

/// Where a step finds its slot.
struct Slots {
  StepCounter* counter = nullptr;
  int64_t slots = 1;
  int64_t ahead = 0;  ///< steps since StepCounter::done that are over when this one begins
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

/// Also keeps the loss of the step before where that is `ahead` too. `position` is null where nobody watches, `loss` in
/// a program without one.
void enqueue_begin_step(const Staging& staging, const FirstCopies& copies, StepScalars* scalars, PositionWord* position,
                        const float* loss, CudaStream stream);
void enqueue_load(const Staging& staging, const InputCopy& copy, CudaStream stream);
/// `to` is pinned memory with `stride` bytes a slot.
void enqueue_print(const Slots& slots, const void* from, std::byte* to, int64_t stride, int64_t bytes,
                   CudaStream stream);
void enqueue_position(const StepScalars* scalars, int instruction, PositionWord* position, CudaStream stream);
/// The step, and those `ahead` of it, are done: a word each.
void enqueue_end_step(const Slots& slots, const float* loss, FinishedWord* finished, CudaStream stream);

}  // namespace trainctl::cuda
