// Shared by the attention gradients that multiply keys by queries: score tiles of 64 keys (rows) by 64 queries
// (columns) in the registers of four warps, and the barriers and copies with which warps pass data to one another.
#pragma once

#include <climits>

#include "engine/ops/attention/head_copies_cuda.cuh"
#include "engine/ops/softmax/exponentials_cuda.cuh"

namespace trainctl::attention {

using cuda::shared_address;

/// Determines which queries attend to which keys.
struct Sight {
  int keys;       ///< number of keys
  int first_row;  ///< index of the first query in the whole
  bool causal;
  int window = 0;  ///< number of queries that see a key, from its own on; 0: all later ones
};
inline constexpr int kNever = -(1 << 30), kAlways = 1 << 30;

/// The place of a query's numbers among those of its tile: a thread reads those of its columns in packs of four.
__device__ inline int row_at(int row) { return row / 16 * 16 + row % 8 / 2 * 4 + row % 16 / 8 * 2 + row % 2; }

/// Waits until `Threads` threads have arrived at the barrier of this number.
template <int Threads>
__device__ void wait_at(int barrier) {
#ifdef TRAINCTL_WARP_GROUP_PRODUCTS
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(Threads) : "memory");
#endif
}
/// Signals that this warp has arrived, without waiting.
template <int Threads>
__device__ void arrive_at(int barrier) {
#ifdef TRAINCTL_WARP_GROUP_PRODUCTS
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "n"(Threads) : "memory");
#endif
}

/// The number of registers that each thread of a group of warps may use from here on.
template <int Count>
__device__ void take_registers() {
#ifdef TRAINCTL_WARP_GROUP_PRODUCTS
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Count));
#endif
}
template <int Count>
__device__ void give_registers() {
#ifdef TRAINCTL_WARP_GROUP_PRODUCTS
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Count));
#endif
}

__device__ inline void end_copies() {
#ifdef TRAINCTL_WARP_GROUP_PRODUCTS
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
#endif
}
/// All of this thread's copies from shared memory have read it.
__device__ inline void copies_read() {
#ifdef TRAINCTL_WARP_GROUP_PRODUCTS
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
#endif
}
/// They have written too.
__device__ inline void copies_done() {
#ifdef TRAINCTL_WARP_GROUP_PRODUCTS
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
#endif
}
/// Four 8 x 8 matrices of a fragment; each thread has the address of a line of one of them.
__device__ inline void store_matrices(unsigned address, const unsigned* a) {
#ifdef TRAINCTL_WARP_GROUP_PRODUCTS
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a[0]), "r"(a[1]),
               "r"(a[2]), "r"(a[3])
               : "memory");
#endif
}

/// This thread's place in the sums of its group.
struct Lane {
  int warp = static_cast<int>(threadIdx.x) / 32 % 4, lane = static_cast<int>(threadIdx.x) % 32;
  int row = 16 * warp + lane / 4;
  int column = 2 * (lane % 4);
};

/// This thread's numbers of a tile's rows, for the columns 16 i .. 16 i + 15 of the sums.
__device__ inline float4 numbers_of(const float* rows, const Lane& lane, int i) {
  return reinterpret_cast<const float4*>(rows)[4 * i + lane.lane % 4];
}

/// p' of 64 keys and a tile of queries from their scores.
__device__ inline void weigh(float unit, const float* logs, const Lane& lane, float (&p)[32]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float4 four = numbers_of(logs, lane, i);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float* const v = p + 8 * i + 2 * h;
      v[0] = power_of_two(fmaf(v[0], unit, -four.x));
      v[1] = power_of_two(fmaf(v[1], unit, -four.y));
      v[4] = power_of_two(fmaf(v[4], unit, -four.z));
      v[5] = power_of_two(fmaf(v[5], unit, -four.w));
    }
  }
}

/// Clears p' where a query does not see a key.
__device__ inline void mask(const Sight& sight, const Lane& lane, int row0, int key0, float (&p)[32]) {
  const unsigned queries = sight.window > 0 ? sight.window : INT_MAX;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int key = key0 + lane.row + 8 * h;
    const int least = key >= sight.keys ? kAlways : sight.causal ? key - sight.first_row - row0 - lane.column : kNever;
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      float& v = p[4 * (i / 2) + 2 * h + i % 2];
      v = static_cast<unsigned>(8 * (i / 2) + i % 2 - least) < queries ? v : 0;
    }
  }
}

/// g' from p' and v dy'.
__device__ inline void slope(const float* means, const Lane& lane, const float (&p)[32], float (&g)[32]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float4 four = numbers_of(means, lane, i);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int at = 8 * i + 2 * h;
      g[at] = p[at] * (g[at] - four.x);
      g[at + 1] = p[at + 1] * (g[at + 1] - four.y);
      g[at + 4] = p[at + 4] * (g[at + 4] - four.z);
      g[at + 5] = p[at + 5] * (g[at + 5] - four.w);
    }
  }
}

/// Rounded sums times `scale`, with `rows` rows and `features` columns.
template <int N>
__device__ void write_sums(const float (&d)[N], float scale, const Lane& lane, bf16* to, int64_t step, int rows,
                           int features) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    if (lane.row + 8 * h >= rows) continue;
    bf16* const line = to + (lane.row + 8 * h) * step + lane.column;
#pragma unroll
    for (int j = 0; j < N / 4; ++j) {
      if (8 * j >= features) continue;
      *reinterpret_cast<unsigned*>(line + 8 * j) =
          cuda::pair_of(scale * d[4 * j + 2 * h], scale * d[4 * j + 2 * h + 1]);
    }
  }
}

template <int N>
__device__ void clear(float (&d)[N]) {
#pragma unroll
  for (float& v : d) v = 0;
}

}  // namespace trainctl::attention
