// The small kernels around a step: they load its data and scalars, and store its loss, without the host. So one
// captured graph serves every step, or several consecutive ones. A step's slot is its number in the run of this
// process, modulo `slots`.
//
//   staging (device)   [ slot 0: inputs | StepScalars ][ slot 1: … ]     filled by the copy stream
//   finished (pinned)  [ slot 0: step, loss ][ slot 1: … ]               read by the host
//   metrics (pinned)   [ slot 0: kMostMetrics ][ slot 1: … ]
//
// begin ─ step ─ begin ─ step ─ begin ─ step ─ end     one launch between two steps: it keeps the loss of the first
//                                                      and loads the second one's data. `end` reports all to the host
#pragma once

#include <cstdint>

#include "engine/graph/graph.h"
#include "engine/ops/cuda/cuda_kernel.h"

namespace trainctl::cuda {

/// The last finished step of a slot: (its number, from 1) << 32 | the bits of its loss. The host polls it. One word, so
/// that it arrives whole.
using FinishedWord = volatile uint64_t;

/// The position of a rank, for the host: the device writes step << 32 | instruction into pinned memory.
using PositionWord = volatile uint64_t;

/// Steps that are enqueued as one.
inline constexpr int kMostStepsAtOnce = 32;

/// Numbers that a program reports per step: its loss, then its metrics.
struct Reported {
  const float* numbers = nullptr;  ///< device; null in a program without a loss
  int metrics = 0;
};

/// The results of steps, in pinned memory of the host.
struct Finished {
  FinishedWord* steps = nullptr;  ///< one per slot
  float* metrics = nullptr;       ///< [slots, kMostMetrics], written before the word
};

/// The progress of this process's steps, in device memory.
struct StepCounter {
  uint64_t done;                                       ///< steps reported to the host
  float reported[kMostStepsAtOnce][1 + kMostMetrics];  ///< reports of the steps since
};

/// The selection of the slot of a step.
struct Slots {
  StepCounter* counter = nullptr;
  int64_t slots = 1;
  int64_t ahead = 0;  ///< steps since StepCounter::done that are finished when this one begins
};

struct Staging : Slots {
  const std::byte* base = nullptr;
  int64_t stride = 0;
  int64_t scalars = 0;  ///< offset in a slot
};

struct InputCopy {
  int64_t from = 0;  ///< offset in a slot of the data, or of int32 row numbers into the table
  void* to = nullptr;
  int64_t bytes = 0;  ///< in total
  const std::byte* table = nullptr;
  int64_t row_bytes = 0;  ///< bytes per row of the table
};

/// A load that converts bytes to floats: see ByteTable.
struct ByteCopy {
  int64_t from = 0;  ///< offset in a slot of the bytes
  void* to = nullptr;
  DType type = DType::f32;  ///< type of the floats
  int64_t samples = 0;
  int64_t pixels = 0, channels = 0;
  bool from_planes = false, to_planes = false;
  const float* values = nullptr;  ///< device: [channels, ByteTable::kValues]
};

/// Copies at the start of a step, together with the scalars.
struct FirstCopies {
  static constexpr int kMost = 8;
  InputCopy list[kMost];
  int count = 0;
};

/// Also keeps what the previous step reports if staging.ahead > 0. `position` is null without a watchdog.
void enqueue_begin_step(const Staging& staging, const FirstCopies& copies, StepScalars* scalars, PositionWord* position,
                        const Reported& reported, CudaStream stream);
void enqueue_load(const Staging& staging, const InputCopy& copy, CudaStream stream);
void enqueue_bytes(const Staging& staging, const ByteCopy& copy, CudaStream stream);
/// `to` is pinned memory with `stride` bytes per slot.
void enqueue_print(const Slots& slots, const void* from, std::byte* to, int64_t stride, int64_t bytes,
                   CudaStream stream);
void enqueue_position(const StepScalars* scalars, int instruction, PositionWord* position, CudaStream stream);
/// Reports this step, and those `ahead` of it, as done.
void enqueue_end_step(const Slots& slots, const Reported& reported, const Finished& finished, CudaStream stream);

}  // namespace trainctl::cuda
