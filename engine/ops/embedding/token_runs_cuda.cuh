// Runs of tokens that name the same row, in a list sorted by row: where each row's run begins, and which runs are
// long. Included by one file only.
#pragma once

#include "engine/ops/embedding/sort_tokens_cuda.cuh"

namespace trainctl {
namespace {

inline constexpr int kOften = 32;    ///< rows with more tokens are frequent; others are one warp's work
inline constexpr int kWindow = 512;  ///< tokens whose long runs one block adds
inline constexpr int kRunThreads = 256, kRunWarps = kRunThreads / 32;

/// Row r's tokens are tokens[first[r]] to tokens[first[r + 1] - 1], in the order of the batch.
struct Sorted {
  const Token* tokens = nullptr;
  int count = 0, rows = 0, windows = 0;
  int* first = nullptr;     ///< [rows + 1]
  float* pieces = nullptr;  ///< [2, windows, width]: sums of a row's tokens in a window; [0] if its run begins there
                            ///< and continues after it, [1] if it begins before the window

  static int64_t windows_of(int64_t tokens) { return tokens / kWindow + 1; }  // one holds the end of the list
  __device__ int64_t piece(int window, bool from_before) const { return window + (from_before ? windows : 0); }
  /// The row at a place; after the list's end, that of tokens of other ranks.
  __device__ int row(int place) const { return place < 0 ? -1 : place < count ? tokens[place].row : rows; }
};

/// A long run's part of a window.
struct Run {
  int row = 0, begin = 0, count = 0;
  bool from_before = false, continues_after = false;
};

/// The tokens of a block's window.
struct Window {
  int token[kWindow], row[kWindow];
  unsigned begins[kWindow / 32];  ///< one bit a place: set where another row begins
  int before, behind;             ///< tokens outside the window of its first and last row, up to kOften
  int runs;                       ///< number of long runs
  short run_begin[kWindow / kOften + 2];

  /// Called by all threads of the block. `marks`: also records first[] for all rows up to those of its tokens.
  __device__ void load(const Sorted& sorted, int window, bool marks) {
    static_assert(kRunThreads * 2 == kWindow);
    const int base = window * kWindow, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (threadIdx.x == 0) runs = 0;
    int own[2], previous[2];
#pragma unroll
    for (int u = 0; u < 2; ++u) {
      const int i = static_cast<int>(threadIdx.x) + u * kRunThreads, place = base + i;
      const Token here = place < sorted.count ? sorted.tokens[place] : Token{0, sorted.rows};
      own[u] = row[i] = here.row;
      token[i] = here.index;
      previous[u] = sorted.row(place - 1);
    }
    if (warp < 2) {
      const int edge = sorted.row(warp == 0 ? base : base + kWindow - 1);
      const int near = sorted.row(warp == 0 ? base - kOften + lane : base + kWindow + lane);
      const int equals = __popc(__ballot_sync(~0u, near == edge));
      static_assert(kOften == 32);
      if (lane == 0) (warp == 0 ? before : behind) = equals;
    }
#pragma unroll
    for (int u = 0; u < 2; ++u) {
      const unsigned changes = __ballot_sync(~0u, own[u] != previous[u]);
      if (lane == 0) begins[u * kRunWarps + warp] = changes;
    }
    __syncthreads();
    if (threadIdx.x == 0) begins[0] |= 1;
    if (marks) mark(sorted, base, own, previous);
    __syncthreads();
#pragma unroll
    for (int u = 0; u < 2; ++u) {
      const int i = static_cast<int>(threadIdx.x) + u * kRunThreads;
      if ((begins[i / 32] >> lane & 1) == 0 || own[u] >= sorted.rows) continue;
      const int end = end_of(i);
      const int all = end - i + (i == 0 ? before : 0) + (end == kWindow ? behind : 0);
      if (all > kOften) run_begin[atomicAdd(&runs, 1)] = static_cast<short>(i);  // in any order
    }
    __syncthreads();
  }
  __device__ Run run(int index) const {
    const int begin = run_begin[index], end = end_of(begin);
    return {row[begin], begin, end - begin, begin == 0 && before > 0, end == kWindow && behind > 0};
  }

 private:
  __device__ int end_of(int begin) const {
    int word = begin / 32;
    unsigned bits = begins[word] & ~1u << begin % 32;
    while (bits == 0 && ++word < kWindow / 32) bits = begins[word];
    return bits == 0 ? kWindow : word * 32 + __popc((bits & -bits) - 1);
  }
  /// Sets first[] for all rows after the preceding place's row, up to the place's own. The whole block fills wide gaps.
  __device__ static void mark(const Sorted& sorted, int base, const int (&own)[2], const int (&previous)[2]) {
    constexpr int kNear = 32;
    __shared__ int3 gaps[kWindow];
    __shared__ int wide;
    if (threadIdx.x == 0) wide = 0;
    __syncthreads();
#pragma unroll
    for (int u = 0; u < 2; ++u) {
      const int place = base + static_cast<int>(threadIdx.x) + u * kRunThreads;
      if (own[u] - previous[u] > kNear) {
        gaps[atomicAdd(&wide, 1)] = make_int3(previous[u], own[u], place);
      } else {
        for (int r = previous[u] + 1; r <= own[u]; ++r) sorted.first[r] = place;
      }
    }
    __syncthreads();
    for (int g = 0; g < wide; ++g) {
      for (int r = gaps[g].x + 1 + static_cast<int>(threadIdx.x); r <= gaps[g].y; r += kRunThreads)
        sorted.first[r] = gaps[g].z;
    }
  }
};

}  // namespace
}  // namespace trainctl
