// The first kernel of attention's gradient in one pass (see attention_grad_one_pass_cuda.cu). It reads dy, out and the
// log-sum-exp of each query's scores (`logs`), and writes the operands `rows` and `steps` of tiles_kernel (Gradient):
// the log and mean of each query, and in order a Step for each pair of a tile of queries and a block of keys.
#pragma once

#include "engine/ops/attention/one_pass_operands_cuda.cuh"

namespace trainctl::attention::one_pass {
namespace {

constexpr int kRowsThreads = 256;

/// Writes the steps of a tile with the blocks of keys it sees. `head`: below schedule.heads; `s`: number of keys.
__device__ void order_blocks(const OnePassSchedule& schedule, int head, int tile, int s, Step* steps) {
  __shared__ int times[kLongestOnePass / kKeys];  // when each of these blocks comes to the tile, in steps
  const int first = schedule.first_seen(tile), count = schedule.seen_end(tile) - first;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kRowsThreads)
    times[i] = schedule.time(first + i, head, tile);
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kRowsThreads)
    steps[schedule.step_at(first + i, head, tile)] = {tile | (schedule.hides(first + i, tile, s) ? kMasked : 0),
                                                      OnePassSchedule::turn(times, count, i)};
}

/// A thread per 8 features of a query; the first `step_blocks` blocks call order_blocks instead. Clears the counters of
/// tiles_kernel, `count` in all. `to`: Gradient::rows; `heads`: layout of dy and out; g, r, t, d, s: AttentionSize.
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
  const int pack = static_cast<int>(threadIdx.x) % kPacks;  // of 8 features
  float sum = 0;
  if (row < t && 8 * pack < d) {
    const int64_t from = offset_of(heads, head / (g * r), head / r % g, head % r, row) + pack * 8;
    sum = dot_pack(dy + from, out + from);
  }
#pragma unroll
  for (int by = kPacks / 2; by > 0; by /= 2) sum += __shfl_xor_sync(~0u, sum, by);
  if (pack != 0) return;
  float* const tile = to + 2 * kRows * (static_cast<int64_t>(head) * tiles + row / kRows) + row_at(row % kRows);
  tile[0] = row < t ? logs[static_cast<int64_t>(head) * t + row] * kLog2e : INFINITY;  // the log to base 2
  tile[kRows] = sum;                                                                   // mean = sum dy * out
}

}  // namespace
}  // namespace trainctl::attention::one_pass
