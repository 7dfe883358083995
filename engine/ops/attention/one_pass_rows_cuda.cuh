// The first kernel of attention's gradient in one pass (attention_grad_one_pass_cuda.cu): it reads dy, out and the logs
// of the forward pass, and writes the two numbers of each query that scores need, and the order of the pairs of tiles
// and blocks, so that tiles_kernel looks up its steps and turns instead of computing them.
#pragma once

#include "engine/ops/attention/one_pass_operands_cuda.cuh"

namespace trainctl::attention::one_pass {
namespace {

constexpr int kRowsThreads = 256;

/// Orders the blocks of keys at one tile of one of the heads of a block of threads.
__device__ void order_blocks(const OnePassSchedule& schedule, int head, int tile, int s, Step* steps) {
  __shared__ int times[kLongestOnePass / kKeys];
  const int first = schedule.first_seen(tile), count = schedule.seen_end(tile) - first;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kRowsThreads)
    times[i] = schedule.time(first + i, head, tile);
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kRowsThreads)
    steps[schedule.step_at(first + i, head, tile)] = {tile | (schedule.hides(first + i, tile, s) ? kMasked : 0),
                                                      OnePassSchedule::turn(times, count, i)};
}

/// A thread per 8 features of a row, over whole tiles of each head. The first blocks make the steps, each those of a
/// tile of a head. Clears `counters`.
template <int Features>
__global__ void __launch_bounds__(kRowsThreads)
    rows_kernel(const bf16* dy, const bf16* out, const float* logs, Heads heads, int g, int r, int t, int d, float* to,
                OnePassSchedule schedule, int s, Step* steps, int step_blocks, int* counters, int count) {
  wait_for_kernel_before();
  let_next_kernel_start();
  constexpr int kPacks = Features / 8, kBlockRows = kRowsThreads / kPacks;
  const int64_t index = int64_t{blockIdx.x} * kRowsThreads + threadIdx.x;
  if (index < count) counters[index] = 0;
  if (static_cast<int>(blockIdx.x) < step_blocks)
    return order_blocks(schedule, static_cast<int>(blockIdx.x) / schedule.tiles,
                        static_cast<int>(blockIdx.x) % schedule.tiles, s, steps);
  const int tiles = schedule.tiles, row_block = static_cast<int>(blockIdx.x) - step_blocks;
  const int blocks = tiles * kRows / kBlockRows, head = row_block / blocks;
  const int row = row_block % blocks * kBlockRows + static_cast<int>(threadIdx.x) / kPacks;
  const int pack = static_cast<int>(threadIdx.x) % kPacks;
  float sum = 0;
  if (row < t && 8 * pack < d) {
    const int64_t from = offset_of(heads, head / (g * r), head / r % g, head % r, row) + pack * 8;
    sum = dot_pack(dy + from, out + from);
  }
#pragma unroll
  for (int by = kPacks / 2; by > 0; by /= 2) sum += __shfl_xor_sync(~0u, sum, by);
  if (pack != 0) return;
  float* const tile = to + 2 * kRows * (static_cast<int64_t>(head) * tiles + row / kRows) + row_at(row % kRows);
  tile[0] = row < t ? logs[static_cast<int64_t>(head) * t + row] * kLog2e : INFINITY;
  tile[kRows] = sum;
}

}  // namespace
}  // namespace trainctl::attention::one_pass
