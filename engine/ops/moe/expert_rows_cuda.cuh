// The rows of this rank's experts on a GPU: (token, expert) pairs ordered by expert and then by token.
#pragma once

#include "engine/ops/cuda/data_check_cuda.cuh"
#include "engine/ops/cuda/vector_cuda.cuh"
#include "engine/ops/moe/experts_size.h"

namespace trainctl {

constexpr int kSortThreads = kPairsOfChunk;  ///< a thread for each pair

/// In scratch memory.
struct ExpertRowsRef {
  int* counts;    ///< [experts, chunks]: pairs of each expert in a chunk, then of the chunks before it
  int* totals;    ///< [experts]
  int* starts;    ///< [experts + 1]: the first row of each expert
  int* pair_of;   ///< [rows]: token * top_k + slot
  int* token_of;  ///< [rows]
  int* row_of;    ///< [pairs]; -1: another rank's expert

  static int chunks(const ExpertsSize& n) {
    return static_cast<int>((n.tokens * n.top_k + kPairsOfChunk - 1) / kPairsOfChunk);
  }
  static ExpertRowsRef at(int* memory, const ExpertsSize& n) {
    ExpertRowsRef rows{};
    rows.counts = memory;
    rows.totals = rows.counts + n.experts * chunks(n);
    rows.starts = rows.totals + n.experts;
    rows.pair_of = rows.starts + n.experts + 1;
    rows.token_of = rows.pair_of + n.rows;
    rows.row_of = rows.token_of + n.rows;
    return rows;
  }
};

/// Counts the pairs of each expert in a chunk, and how many of the same expert precede each pair in it, in row_of.
__global__ void __launch_bounds__(kSortThreads)
    count_pairs_kernel(const int32_t* ids, int64_t pairs, int first, int experts, ExpertRowsRef rows) {
  __shared__ int of_chunk[kSortThreads];
  wait_for_kernel_before();
  let_next_kernel_start();
  const int chunks = static_cast<int>(gridDim.x), chunk = static_cast<int>(blockIdx.x);
  for (int e = static_cast<int>(threadIdx.x); e < experts; e += kSortThreads) rows.counts[e * chunks + chunk] = 0;
  const int64_t p = static_cast<int64_t>(chunk) * kPairsOfChunk + threadIdx.x;
  const int id = p < pairs ? ids[p] - first : -1, own = id >= 0 && id < experts ? id : -1;
  of_chunk[threadIdx.x] = own;
  __syncthreads();
  if (own < 0) return;
  int before = 0, all = 0;
#pragma unroll 16
  for (int i = 0; i < kSortThreads; ++i) {
    const int same = of_chunk[i] == own;
    all += same;
    before += i < static_cast<int>(threadIdx.x) ? same : 0;
  }
  rows.row_of[p] = before;
  if (before == 0) rows.counts[own * chunks + chunk] = all;
}

/// The sum over the warp's lanes up to this one.
__device__ inline int sum_up_to_lane(int v) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int other = __shfl_up_sync(0xffffffffu, v, step);
    if (lane >= step) v += other;
  }
  return v;
}

/// A warp replaces the counts of one expert by those of the chunks before.
__global__ void __launch_bounds__(kSortThreads) sum_counts_kernel(int experts, int chunks, ExpertRowsRef rows) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int e = static_cast<int>(blockIdx.x) * (kSortThreads / 32) + static_cast<int>(threadIdx.x) / 32;
  if (e >= experts) return;
  int* const counts = rows.counts + e * chunks;
  int before = 0;
  for (int first = 0; first < chunks; first += 32) {
    const int chunk = first + static_cast<int>(threadIdx.x) % 32, count = chunk < chunks ? counts[chunk] : 0;
    const int up_to = before + sum_up_to_lane(count);
    if (chunk < chunks) counts[chunk] = up_to - count;
    before = __shfl_sync(0xffffffffu, up_to, 31);
  }
  if (threadIdx.x % 32 == 0) rows.totals[e] = before;
}

/// One warp finds the first row of each expert.
__global__ void __launch_bounds__(32) find_starts_kernel(int experts, int64_t most_rows, ExpertRowsRef rows) {
  wait_for_kernel_before();
  let_next_kernel_start();
  int before = 0;
  for (int first = 0; first < experts; first += 32) {
    const int e = first + static_cast<int>(threadIdx.x), total = e < experts ? rows.totals[e] : 0;
    const int up_to = before + sum_up_to_lane(total);
    if (e < experts) rows.starts[e] = up_to - total;
    before = __shfl_sync(0xffffffffu, up_to, 31);
  }
  if (threadIdx.x != 0) return;
  rows.starts[experts] = before;
  if (before > most_rows)
    data_is_wrong(
        "moe: this rank's experts receive more rows than its memory has room for; increase the layer's capacity");
}

/// A block gives the pairs of a chunk their rows: by expert, and then in the order of the tokens. Marks the pairs of
/// other ranks.
__global__ void __launch_bounds__(kSortThreads)
    place_pairs_kernel(const int32_t* ids, int64_t pairs, int top_k, int first, int experts, int64_t most_rows,
                       ExpertRowsRef rows) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int chunks = static_cast<int>(gridDim.x), chunk = static_cast<int>(blockIdx.x);
  const int64_t p = static_cast<int64_t>(chunk) * kPairsOfChunk + threadIdx.x;
  if (p >= pairs) return;
  const int id = ids[p] - first;
  if (id < 0 || id >= experts) {
    rows.row_of[p] = -1;
    return;
  }
  const int row = rows.starts[id] + rows.counts[id * chunks + chunk] + rows.row_of[p];
  rows.row_of[p] = row;
  if (row >= most_rows) return;
  rows.pair_of[row] = static_cast<int>(p);
  rows.token_of[row] = static_cast<int>(p) / top_k;
}

}  // namespace trainctl
