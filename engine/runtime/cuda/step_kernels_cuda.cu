// The small kernels around a step: they load its data and scalars, and store its loss, without the host.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "engine/ops/cuda/launch_cuda.h"
#include "engine/runtime/byte_table.h"
#include "engine/runtime/cuda/step_kernels.h"

namespace trainctl::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMostBlocks = 1024;

__device__ int64_t slot_of(const Slots& s) { return (s.counter->done + s.ahead) % s.slots; }

/// to[i] = get(i). A thread reads its first elements before wait() and writes them after it.
template <class Unit, class Get, class Wait>
__device__ void move_units(std::byte* to, int64_t units, Get get, Wait wait) {
  int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  Unit ahead{};
  if (i < units) ahead = get(i);
  wait();
  if (i < units) reinterpret_cast<Unit*>(to)[i] = ahead;
  for (const int64_t step = gridDim.x * int64_t{kThreads}; (i += step) < units;)
    reinterpret_cast<Unit*>(to)[i] = get(i);
}

template <class Unit, class Wait>
__device__ void copy_units(const std::byte* from, std::byte* to, int64_t units, Wait wait) {
  move_units<Unit>(
      to, units, [&](int64_t i) { return reinterpret_cast<const Unit*>(from)[i]; }, wait);
}

template <class Wait>
__device__ void copy_bytes(const std::byte* from, std::byte* to, int64_t bytes, Wait wait) {
  if ((reinterpret_cast<uintptr_t>(from) | reinterpret_cast<uintptr_t>(to)) % sizeof(uint4) != 0)
    return copy_units<std::byte>(from, to, bytes, wait);
  const int64_t whole = bytes / static_cast<int64_t>(sizeof(uint4)) * static_cast<int64_t>(sizeof(uint4));
  copy_units<uint4>(from, to, whole / static_cast<int64_t>(sizeof(uint4)), wait);
  copy_units<std::byte>(from + whole, to + whole, bytes - whole, [] {});
}

/// Row r is row numbers[r] of the table.
template <class Unit, class Wait>
__device__ void gather_units(const std::byte* table, const int32_t* numbers, std::byte* to, int64_t bytes,
                             int64_t row_bytes, Wait wait) {
  const int64_t row_units = row_bytes / static_cast<int64_t>(sizeof(Unit));
  const auto get = [&](int64_t i) {
    const int64_t row = i / row_units;
    return reinterpret_cast<const Unit*>(table + numbers[row] * row_bytes)[i - row * row_units];
  };
  move_units<Unit>(to, bytes / static_cast<int64_t>(sizeof(Unit)), get, wait);
}

/// Calls wait() before it writes.
template <class Wait>
__device__ void copy_input(const std::byte* slot, const InputCopy& copy, Wait wait) {
  auto* to = static_cast<std::byte*>(copy.to);
  if (copy.table == nullptr) return copy_bytes(slot + copy.from, to, copy.bytes, wait);
  const auto* numbers = reinterpret_cast<const int32_t*>(slot + copy.from);
  const uintptr_t all = reinterpret_cast<uintptr_t>(to) | static_cast<uintptr_t>(copy.row_bytes);
  const int64_t bytes = copy.bytes, row = copy.row_bytes;
  if (all % sizeof(uint4) == 0) return gather_units<uint4>(copy.table, numbers, to, bytes, row, wait);
  if (all % sizeof(uint32_t) == 0) return gather_units<uint32_t>(copy.table, numbers, to, bytes, row, wait);
  gather_units<uint16_t>(copy.table, numbers, to, bytes, row, wait);
}

/// Row y of the grid does copy y, the last row the scalars. Staged data does not change while earlier steps run, so a
/// step that is `ahead` reads it before they end. Only the first step waits before it reads: for the count of steps.
__global__ void begin_step(Staging staging, FirstCopies copies, StepScalars* scalars, PositionWord* position,
                           Reported reported) {
  let_next_kernel_start();
  if (staging.ahead == 0) wait_for_kernel_before();
  const auto wait = [&] {
    if (staging.ahead > 0) wait_for_kernel_before();
  };
  const std::byte* slot = staging.base + slot_of(staging) * staging.stride;
  if (blockIdx.y < copies.count) return copy_input(slot, copies.list[blockIdx.y], wait);
  const StepScalars now = *reinterpret_cast<const StepScalars*>(slot + staging.scalars);
  wait();
  if (blockIdx.x != 0 || threadIdx.x != 0) return;
  *scalars = now;
  if (position != nullptr) *position = (now.step + uint64_t{1}) << 32;
  if (staging.ahead == 0 || reported.numbers == nullptr) return;
  for (int i = 0; i <= reported.metrics; ++i) staging.counter->reported[staging.ahead - 1][i] = reported.numbers[i];
}

__global__ void load(Staging staging, InputCopy copy) {
  wait_for_kernel_before();
  let_next_kernel_start();
  copy_input(staging.base + slot_of(staging) * staging.stride, copy, [] {});
}

template <class T>
__device__ T as(float value);
template <>
__device__ float as<float>(float value) {
  return value;
}
template <>
__device__ __nv_bfloat16 as<__nv_bfloat16>(float value) {
  return __float2bfloat16_rn(value);
}
template <>
__device__ __half as<__half>(float value) {
  return __float2half_rn(value);
}

/// One thread per pixel: its bytes share a sector, and neighboring threads write neighboring elements of each plane.
template <class T>
__device__ void map_bytes(const uint8_t* from, const ByteCopy& copy, const float* values) {
  const int64_t pixels = copy.pixels, channels = copy.channels, all = copy.samples * pixels;
  const int64_t from_step = copy.from_planes ? pixels : 1, to_step = copy.to_planes ? pixels : 1;
  T* to = static_cast<T*>(copy.to);
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < all; i += gridDim.x * int64_t{kThreads}) {
    const int64_t sample = i / pixels, pixel = i - sample * pixels, first = sample * pixels * channels;
    const int64_t in = first + (copy.from_planes ? pixel : pixel * channels);
    const int64_t out = first + (copy.to_planes ? pixel : pixel * channels);
    for (int64_t c = 0; c < channels; ++c)
      to[out + c * to_step] = as<T>(values[c * ByteTable::kValues + from[in + c * from_step]]);
  }
}

__global__ void load_bytes(Staging staging, ByteCopy copy) {
  __shared__ float values[ByteTable::kMostChannels * ByteTable::kValues];
  wait_for_kernel_before();
  let_next_kernel_start();
  for (int64_t i = threadIdx.x; i < copy.channels * ByteTable::kValues; i += kThreads) values[i] = copy.values[i];
  __syncthreads();
  const auto* from = reinterpret_cast<const uint8_t*>(staging.base + slot_of(staging) * staging.stride + copy.from);
  if (copy.type == DType::bf16)
    map_bytes<__nv_bfloat16>(from, copy, values);
  else if (copy.type == DType::f16)
    map_bytes<__half>(from, copy, values);
  else
    map_bytes<float>(from, copy, values);
}

/// Copies a printed tensor to its slot in pinned host memory.
__global__ void print(Slots slots, const std::byte* from, std::byte* to, int64_t stride, int64_t bytes) {
  wait_for_kernel_before();
  let_next_kernel_start();
  copy_bytes(from, to + slot_of(slots) * stride, bytes, [] {});
}

__global__ void write_position(const StepScalars* scalars, int instruction, PositionWord* position) {
  *position = (scalars->step + uint64_t{1}) << 32 | static_cast<uint32_t>(instruction);
}

/// One warp, one thread per step. Printed tensors are in host memory before the host sees the step as finished.
__global__ void end_step(Slots slots, Reported reported, Finished finished) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t mine = threadIdx.x;
  const uint64_t done = slots.counter->done, step = done + mine;
  __syncwarp();
  if (mine == slots.ahead) slots.counter->done = step + 1;
  if (mine > slots.ahead) return;
  const float* numbers = mine < slots.ahead ? slots.counter->reported[mine] : reported.numbers;
  const float loss = reported.numbers == nullptr ? 0.0f : numbers[0];
  const uint64_t slot = step % slots.slots;
  for (int i = 0; i < reported.metrics; ++i) finished.metrics[slot * kMostMetrics + i] = numbers[1 + i];
  __threadfence_system();
  finished.steps[slot] = (step + 1) << 32 | __float_as_uint(loss);
}

unsigned blocks_for(int64_t bytes) {
  return static_cast<unsigned>(std::clamp<int64_t>(ceil_div(bytes, kThreads * int64_t{sizeof(uint4)}), 1, kMostBlocks));
}

}  // namespace

void enqueue_begin_step(const Staging& staging, const FirstCopies& copies, StepScalars* scalars, PositionWord* position,
                        const Reported& reported, CudaStream stream) {
  unsigned blocks = 1;
  for (int i = 0; i < copies.count; ++i) blocks = std::max(blocks, blocks_for(copies.list[i].bytes));
  const dim3 grid(blocks, static_cast<unsigned>(copies.count + 1));
  launch(begin_step, grid, kThreads, 0, stream, "begin_step", staging, copies, scalars, position, reported);
}

void enqueue_load(const Staging& staging, const InputCopy& copy, CudaStream stream) {
  launch(load, blocks_for(copy.bytes), kThreads, 0, stream, "load", staging, copy);
}

void enqueue_bytes(const Staging& staging, const ByteCopy& copy, CudaStream stream) {
  check(copy.channels <= ByteTable::kMostChannels, "a byte table has few channels");
  const int64_t blocks = std::clamp<int64_t>(ceil_div(copy.samples * copy.pixels, kThreads), 1, kMostBlocks);
  launch(load_bytes, static_cast<unsigned>(blocks), kThreads, 0, stream, "load_bytes", staging, copy);
}

void enqueue_print(const Slots& slots, const void* from, std::byte* to, int64_t stride, int64_t bytes,
                   CudaStream stream) {
  launch(print, blocks_for(bytes), kThreads, 0, stream, "print", slots, static_cast<const std::byte*>(from), to, stride,
         bytes);
}

void enqueue_position(const StepScalars* scalars, int instruction, PositionWord* position, CudaStream stream) {
  write_position<<<1, 1, 0, stream>>>(scalars, instruction, position);
  cuda_check_launch("write_position");
}

void enqueue_end_step(const Slots& slots, const Reported& reported, const Finished& finished, CudaStream stream) {
  constexpr unsigned kWarp = 32;
  static_assert(kMostStepsAtOnce <= kWarp);
  check(slots.ahead < kMostStepsAtOnce, "the counter must have a slot for the report of this step");
  launch(end_step, 1, kWarp, 0, stream, "end_step", slots, reported, finished);
}

}  // namespace trainctl::cuda
