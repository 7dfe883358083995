// Sorts tokens by the row of the table that they name: a stable radix sort, 8 bits per pass. Each block has an equal
// share of the tokens, independent of the ids. Included by one file only.
#pragma once

#include "engine/ops/embedding/table_rows_cuda.cuh"

namespace trainctl {
namespace {

inline constexpr int kDigitBits = 8, kDigits = 1 << kDigitBits;
inline constexpr int kSortThreads = 512, kSortWarps = kSortThreads / 32;
inline constexpr int kTokensOfThread = 4;  ///< at a time
inline constexpr int kTileTokens = kSortThreads * kTokensOfThread;
inline constexpr int kMaxSortBlocks = 256;

struct Token {
  int index;  ///< index in the batch
  int row;    ///< row of this rank's table; for tokens of other ranks its number of rows, so that they come last
};

/// Memory of a sort, and its division into blocks.
struct TokenSort {
  Token* lists[2] = {};   ///< [tokens]: a pass moves them from one to the other
  int* counts = nullptr;  ///< [passes, blocks, kDigits]: tokens of each digit in a block's share of a pass's input
  int tokens = 0;
  int passes = 1;
  int share_bits = 0;  ///< each block has 2^share_bits tokens

  TokenSort(int count, int64_t rows) : tokens(count) {
    for (; rows >> (kDigitBits * passes) > 0;) ++passes;
    for (share_bits = 11; blocks() > kMaxSortBlocks;) ++share_bits;
    static_assert(kTileTokens == 1 << 11);
  }
  int blocks() const { return static_cast<int>(ceil_div(tokens, int64_t{1} << share_bits)); }
  int64_t ints() const { return int64_t{4} * tokens + int64_t{passes} * blocks() * kDigits; }
  void use(int* memory) {  // aligned to 8 bytes
    lists[0] = reinterpret_cast<Token*>(memory);
    lists[1] = lists[0] + tokens;
    counts = reinterpret_cast<int*>(lists[1] + tokens);
  }
  /// The input of a pass; its output is the input of the next one.
  __host__ __device__ Token* list(int pass) const { return pass % 2 == 0 ? lists[0] : lists[1]; }
  const Token* sorted() const { return list(passes); }

  __device__ int begin() const { return static_cast<int>(blockIdx.x) << share_bits; }
  __device__ int end() const { return min(begin() + (1 << share_bits), tokens); }
  __device__ int* counts_of(int pass) const { return counts + static_cast<int64_t>(pass) * gridDim.x * kDigits; }
  __device__ static int digit(int row, int pass) { return (row >> (kDigitBits * pass)) & (kDigits - 1); }
};

/// The sum of `mine` over the preceding threads of the block; `total`: over all. Called by every thread.
template <int kBlock>
__device__ inline int sum_before(int mine, int& total) {
  __shared__ int of_warp[kBlock / 32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int sum = mine;
  for (int away = 1; away < 32; away *= 2) {
    const int other = __shfl_up_sync(~0u, sum, away);
    if (lane >= away) sum += other;
  }
  __syncthreads();
  if (lane == 31) of_warp[warp] = sum;
  __syncthreads();
  int before = 0;
  total = 0;
  for (int w = 0; w < kBlock / 32; ++w) {
    if (w < warp) before += of_warp[w];
    total += of_warp[w];
  }
  return before + sum - mine;
}

/// Writes the first list and its counts.
__global__ void __launch_bounds__(kSortThreads) list_tokens(TableRows rows, const int32_t* ids, TokenSort sort) {
  __shared__ int count[kDigits];
  wait_for_kernel_before();
  let_next_kernel_start();
  if (threadIdx.x < kDigits) count[threadIdx.x] = 0;
  __syncthreads();
  const int end = sort.end();
  for (int from = sort.begin() + static_cast<int>(threadIdx.x); from < end; from += kTileTokens) {
    int32_t id[kTokensOfThread];
#pragma unroll
    for (int u = 0; u < kTokensOfThread; ++u) id[u] = ids[min(from + u * kSortThreads, end - 1)];
#pragma unroll
    for (int u = 0; u < kTokensOfThread; ++u) {
      const int i = from + u * kSortThreads;
      if (i >= end) continue;
      const int own = rows.local(id[u]), row = own < 0 ? static_cast<int>(rows.count) : own;
      sort.lists[0][i] = {i, row};
      atomicAdd(&count[sort.digit(row, 0)], 1);
    }
  }
  __syncthreads();
  if (threadIdx.x >= kDigits) return;
  const int at = static_cast<int>(blockIdx.x) * kDigits + static_cast<int>(threadIdx.x);
  sort.counts_of(0)[at] = count[threadIdx.x];
  for (int pass = 1; pass < sort.passes; ++pass) sort.counts_of(pass)[at] = 0;
}

/// The start of this block's tokens of each digit: after all tokens of lower digits, and those of preceding blocks.
__device__ inline void first_places(const int* counts, int (&places)[kDigits]) {
  constexpr int kParts = kSortThreads / kDigits;
  __shared__ int totals[kParts][kDigits], earlier[kParts][kDigits];
  const int digit = static_cast<int>(threadIdx.x) % kDigits, part = static_cast<int>(threadIdx.x) / kDigits;
  const int blocks = static_cast<int>(gridDim.x), own = static_cast<int>(blockIdx.x);
  int total = 0, before = 0;
#pragma unroll 8
  for (int b = part; b < blocks; b += kParts) {
    const int count = counts[b * kDigits + digit];
    total += count;
    before += b < own ? count : 0;
  }
  totals[part][digit] = total;
  earlier[part][digit] = before;
  __syncthreads();
  total = before = 0;
  if (part == 0) {
    for (int p = 0; p < kParts; ++p) total += totals[p][digit], before += earlier[p][digit];
  }
  int all = 0;
  const int lower = sum_before<kSortThreads>(total, all);
  if (part == 0) places[digit] = lower + before;
}

/// Moves the block's share of one list to the other, by a digit, and counts digits for the next pass. Each warp has a
/// part of a tile, with its own places.
__global__ void __launch_bounds__(kSortThreads) sort_by_digit(TokenSort sort, int pass) {
  __shared__ int next[kDigits];
  __shared__ int places[kSortWarps][kDigits];
  wait_for_kernel_before();
  let_next_kernel_start();
  const Token* const from = sort.list(pass);
  Token* const to = sort.list(pass + 1);
  first_places(sort.counts_of(pass), next);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, end = sort.end();
  const unsigned before_me = (1u << lane) - 1;
  for (int tile = sort.begin(); tile < end; tile += kTileTokens) {
    const int first = tile + warp * kTokensOfThread * 32 + lane;
    Token token[kTokensOfThread];
    int rank[kTokensOfThread];
#pragma unroll
    for (int u = 0; u < kTokensOfThread; ++u) token[u] = from[min(first + u * 32, end - 1)];
    for (int i = threadIdx.x; i < kSortWarps * kDigits; i += kSortThreads) places[i / kDigits][i % kDigits] = 0;
    __syncthreads();
#pragma unroll
    for (int u = 0; u < kTokensOfThread; ++u) {
      const bool there = first + u * 32 < end;
      const int digit = sort.digit(token[u].row, pass);
      const unsigned equals = __match_any_sync(~0u, there ? digit : kDigits);
      rank[u] = places[warp][digit] + __popc(equals & before_me);
      __syncwarp();
      if (there && (equals & before_me) == 0) places[warp][digit] += __popc(equals);
      __syncwarp();
    }
    __syncthreads();
    if (threadIdx.x < kDigits) {
      int place = next[threadIdx.x];
      for (int w = 0; w < kSortWarps; ++w) {
        const int here = places[w][threadIdx.x];
        places[w][threadIdx.x] = place;
        place += here;
      }
      next[threadIdx.x] = place;
    }
    __syncthreads();
#pragma unroll
    for (int u = 0; u < kTokensOfThread; ++u) {
      const bool there = first + u * 32 < end;
      const int place = places[warp][sort.digit(token[u].row, pass)] + rank[u];
      if (there) to[place] = token[u];
      if (pass + 1 == sort.passes) continue;
      const int counter = (place >> sort.share_bits) * kDigits + sort.digit(token[u].row, pass + 1);
      const unsigned equals = __match_any_sync(~0u, there ? counter : -1);
      if (there && (equals & before_me) == 0) atomicAdd(sort.counts_of(pass + 1) + counter, __popc(equals));
    }
    __syncthreads();  // the next iteration clears the places
  }
}

// Launchers

inline void launch_sort(const TableRows& rows, const int32_t* ids, const TokenSort& sort, CudaStream stream,
                        const char* name) {
  const auto blocks = static_cast<unsigned>(sort.blocks());
  launch(list_tokens, blocks, kSortThreads, 0, stream, name, rows, ids, sort);
  for (int pass = 0; pass < sort.passes; ++pass)
    launch(sort_by_digit, blocks, kSortThreads, 0, stream, name, sort, pass);
}

}  // namespace
}  // namespace trainctl
