// Tokens sorted by the row of the table that they name, stable, in one launch: each block sorts those of its own range
// of rows. Included by one file only.
#pragma once

#include "engine/ops/embedding/table_rows_cuda.cuh"

namespace trainctl {
namespace {

inline constexpr int kRowsOfRange = 256;  ///< rows of which one block sorts the tokens
inline constexpr int kSortThreads = 1024;
inline constexpr int kSortWarps = kSortThreads / 32;
inline constexpr int kRangeTokens = 2560;  ///< of a range, that shared memory holds
inline constexpr int kOften = 32;          ///< tokens of a row up to which it is a warp's
inline constexpr int kPiece = 512;         ///< tokens of a piece; the last one of a row has up to 2 kPiece - 1

/// Tokens by row, in the order of the batch: those of row r are tokens[first[r]] to tokens[first[r + 1] - 1].
struct Sorted {
  float* pieces = nullptr;    ///< [tokens / kPiece, width]: sums of a row's pieces where it has several, by their first
                              ///< place / kPiece: such places are kPiece apart
  int* first = nullptr;       ///< [rows + 1]
  int* unsorted = nullptr;    ///< [tokens]: by range only, of ranges with more than kRangeTokens
  int* tokens = nullptr;      ///< [tokens]
  int* often_rows = nullptr;  ///< [tokens]: the row, -1 where it is not named often
};
/// Pieces of a row with so many tokens.
__device__ inline int pieces_of(int tokens) { return max(1, tokens / kPiece); }

/// How many threads of the block before this one count what; `total` of all. Every thread takes part.
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

/// The tokens of rows [low, high), in order, to `to`, as far as there is room. Returns how many; `lower`: of rows
/// below them that this thread saw.
__device__ inline int gather(const TableRows& rows, const int32_t* ids, int tokens, int low, int high, int* to,
                             int room, int& lower) {
  constexpr int kEach = 8;  // neighbours, so that the order stays
  int written = 0;
  lower = 0;
  for (int start = 0; start < tokens; start += kSortThreads * kEach) {
    const int at = start + static_cast<int>(threadIdx.x) * kEach;
    int32_t id[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) id[i] = ids[min(at + i, tokens - 1)];  // all, before any is checked
    int mine = 0;
    bool own[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int row = at + i < tokens ? rows.local(id[i]) : -1;
      own[i] = row >= low && row < high;
      mine += own[i] ? 1 : 0;
      lower += row >= 0 && row < low ? 1 : 0;
    }
    int total = 0;
    int place = written + sum_before<kSortThreads>(mine, total);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (own[i] && place < room) to[place] = at + i;
      place += own[i] ? 1 : 0;
    }
    written += total;
  }
  __syncthreads();
  return written;
}

/// A block sorts the tokens of one range of rows, behind those of lower ranges, which it counts itself. Each warp has a
/// part of the list, and counts and places it by rows of its own.
__global__ void __launch_bounds__(kSortThreads)
    sort_kernel(TableRows rows, const int32_t* ids, int tokens, Sorted sorted) {
  __shared__ int places[kSortWarps][kRowsOfRange];
  __shared__ bool often[kRowsOfRange];
  __shared__ int range_tokens[kRangeTokens];
  wait_for_kernel_before();
  let_next_kernel_start();
  const int low = static_cast<int>(blockIdx.x) * kRowsOfRange;
  const int high = min(low + kRowsOfRange, static_cast<int>(rows.count));
  for (int i = threadIdx.x; i < kSortWarps * kRowsOfRange; i += kSortThreads)
    places[i / kRowsOfRange][i % kRowsOfRange] = 0;
  int lower = 0, first = 0;
  const int count = gather(rows, ids, tokens, low, high, range_tokens, kRangeTokens, lower);
  sum_before<kSortThreads>(lower, first);
  const int* list = range_tokens;
  if (count > kRangeTokens) {
    gather(rows, ids, tokens, low, high, sorted.unsorted + first, count, lower);
    list = sorted.unsorted + first;
  }

  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int part = (count + kSortThreads - 1) / kSortThreads * 32;  // of a warp
  const int begin = min(count, warp * part), end = min(count, begin + part);
  const auto over_part = [&](auto use) {  // use(token, row or -1, its equals in the warp)
    constexpr int kAhead = 4;
    for (int from = begin; from < end; from += 32 * kAhead) {
      int token[kAhead], row[kAhead];
#pragma unroll
      for (int u = 0; u < kAhead; ++u) token[u] = list[min(from + u * 32 + lane, end - 1)];
#pragma unroll
      for (int u = 0; u < kAhead; ++u) row[u] = ids[token[u]];
#pragma unroll
      for (int u = 0; u < kAhead; ++u) {
        const int r = from + u * 32 + lane < end ? rows.local(row[u]) - low : -1;
        use(token[u], r, __match_any_sync(~0u, r));
        __syncwarp();
      }
    }
  };
  const unsigned before_me = (1u << lane) - 1;
  over_part([&](int, int row, unsigned equals) {
    if (row >= 0 && (equals & before_me) == 0) places[warp][row] += __popc(equals);
  });
  __syncthreads();
  int of_row = 0, total = 0;
  if (threadIdx.x < kRowsOfRange) {
    for (int w = 0; w < kSortWarps; ++w) of_row += places[w][threadIdx.x];
  }
  int place = first + sum_before<kSortThreads>(of_row, total);
  const int row = low + static_cast<int>(threadIdx.x);
  if (threadIdx.x < kRowsOfRange && row < high) {
    sorted.first[row] = place;
    if (row == static_cast<int>(rows.count) - 1) sorted.first[row + 1] = place + of_row;
    for (int w = 0; w < kSortWarps; ++w) {
      const int here = places[w][threadIdx.x];
      places[w][threadIdx.x] = place;
      place += here;
    }
  }
  if (threadIdx.x < kRowsOfRange) often[threadIdx.x] = of_row > kOften;
  __syncthreads();
  over_part([&](int token, int r, unsigned equals) {
    const int to = r >= 0 ? places[warp][r] + __popc(equals & before_me) : 0;
    __syncwarp();
    if (r >= 0 && (equals & before_me) == 0) places[warp][r] += __popc(equals);
    if (r < 0) return;
    sorted.tokens[to] = token;
    sorted.often_rows[to] = often[r] ? low + r : -1;
  });
}

}  // namespace
}  // namespace trainctl
