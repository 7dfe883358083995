// The rows of this rank's experts on a GPU: (token, expert) pairs ordered by expert and then by token.
#pragma once

#include "engine/ops/cuda/data_check_cuda.cuh"
#include "engine/ops/cuda/vector_cuda.cuh"
#include "engine/ops/moe/experts_size.h"

namespace trainctl {

constexpr int kSortThreads = 256, kSortWarps = kSortThreads / 32;

/// In scratch memory.
struct ExpertRowsRef {
  int* counts;   ///< [experts]
  int* starts;   ///< [experts + 1]: the first row of each expert
  int* pair_of;  ///< [rows]: token * top_k + slot
  int* row_of;   ///< [pairs]; -1: another rank's expert

  static int64_t ints(const ExpertsSize& n) { return 2 * n.experts + 1 + n.rows + n.tokens * n.top_k; }
  static ExpertRowsRef at(int* memory, const ExpertsSize& n) {
    return {memory, memory + n.experts, memory + 2 * n.experts + 1, memory + 2 * n.experts + 1 + n.rows};
  }
};

/// A block counts the pairs of one expert.
__global__ void __launch_bounds__(kSortThreads)
    count_pairs_kernel(const int32_t* ids, int64_t pairs, int first, ExpertRowsRef rows) {
  __shared__ int sums[kSortWarps];
  wait_for_kernel_before();
  let_next_kernel_start();
  const int own = first + static_cast<int>(blockIdx.x);
  int count = 0;
  for (int64_t p = threadIdx.x; p < pairs; p += kSortThreads) count += ids[p] == own;
#pragma unroll
  for (int step = 16; step > 0; step /= 2) count += __shfl_xor_sync(0xffffffffu, count, step);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = count;
  __syncthreads();
  if (threadIdx.x != 0) return;
  int total = 0;
  for (int w = 0; w < kSortWarps; ++w) total += sums[w];
  rows.counts[blockIdx.x] = total;
}

/// A block gives the pairs of one expert their rows, in the order of the tokens. The first block also marks the pairs
/// of other ranks.
__global__ void __launch_bounds__(kSortThreads) place_pairs_kernel(const int32_t* ids, int64_t pairs, int first,
                                                                   int experts, int64_t most_rows, ExpertRowsRef rows) {
  __shared__ int before[kSortWarps];
  wait_for_kernel_before();
  let_next_kernel_start();
  const int own = static_cast<int>(blockIdx.x), warp = static_cast<int>(threadIdx.x) / 32, lane = threadIdx.x % 32;
  int next = 0;
  for (int e = 0; e < own; ++e) next += rows.counts[e];
  if (threadIdx.x == 0) {
    rows.starts[own] = next;
    if (own + 1 == experts) rows.starts[experts] = next + rows.counts[own];
    if (next + rows.counts[own] > most_rows)
      data_is_wrong(
          "moe: this rank's experts receive more rows than its memory has room for; increase the layer's capacity");
  }
  for (int64_t begin = 0; begin < pairs; begin += kSortThreads) {
    const int64_t p = begin + threadIdx.x;
    const int id = p < pairs ? ids[p] - first : -1;
    const bool mine = p < pairs && id == own;
    const unsigned votes = __ballot_sync(0xffffffffu, mine);
    if (lane == 0) before[warp] = __popc(votes);
    __syncthreads();
    int row = next + __popc(votes & ((1u << lane) - 1));
    for (int w = 0; w < kSortWarps; ++w) {
      if (w < warp) row += before[w];
      next += before[w];
    }
    if (mine && row < most_rows) {
      rows.row_of[p] = row;
      rows.pair_of[row] = static_cast<int>(p);
    }
    if (own == 0 && p < pairs && (id < 0 || id >= experts)) rows.row_of[p] = -1;
    __syncthreads();
  }
}

}  // namespace trainctl
