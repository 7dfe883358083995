// Grouped products of bf16 on tensor cores (mma.sync m16n8k16, f32 sums): one launch for all experts. A block computes
// a tile of 64 x 128 numbers of one expert, 32 terms at a time; the terms of the next step are loaded to registers
// while the current ones, in one of two buffers of shared memory, are multiplied. A warp has 32 x 32 numbers.
//
// An operand has the same order in shared memory as in memory: by terms [line][32 terms], or by lines [term][lines],
// from which ldmatrix reads transposed 8 x 8 blocks. The padding keeps 8 rows in different banks.
#pragma once

#include "engine/ops/cuda/vector_cuda.cuh"

namespace trainctl {

constexpr int kGroupedLines = 64, kGroupedColumns = 128, kGroupedTerms = 32, kGroupedThreads = 256;
constexpr int kChunk = 8;  ///< bf16 of a 16-byte access
constexpr int kTermsPitch = kGroupedTerms + 8;

/// The pitch of `kLines` lines that are stored by lines.
template <int kLines>
constexpr int kLinesPitch = kLines + 8;

template <int kLines>
constexpr int kGroupedElements =
    kLines* kTermsPitch > kGroupedTerms* kLinesPitch<kLines> ? kLines* kTermsPitch : kGroupedTerms* kLinesPitch<kLines>;

struct alignas(16) GroupedMemory {
  bf16 a[2][kGroupedElements<kGroupedLines>], b[2][kGroupedElements<kGroupedColumns>];
};

__device__ inline void multiply_fragments(float (&sums)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// Four 8 x 8 matrices, transposed: lane i has the address of row i % 8 of matrix i / 8.
__device__ inline void load_four_transposed(uint32_t (&to)[4], const bf16* from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(from)))
               : "memory");
}

__device__ inline uint32_t two_terms(const bf16* from) { return *reinterpret_cast<const uint32_t*>(from); }

/// 8 bf16, times a weight.
__device__ inline uint4 weighted(const uint4& q, float weight) {
  float v[8];
  eight(q, v);
  uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(v[2 * i] * weight, v[2 * i + 1] * weight);
    words[i] = *reinterpret_cast<const uint32_t*>(&pair);
  }
  return {words[0], words[1], words[2], words[3]};
}

/// The 32 x 32 numbers of a warp.
struct WarpTile {
  float sums[2][4][4] = {};  // [of 16 lines][of 8 columns][of a thread]

  /// Multiplies the terms of one buffer. kATerms, kBTerms: the operand is stored by terms.
  template <bool kATerms, bool kBTerms>
  __device__ void multiply(const bf16* a, const bf16* b, int line, int column) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int k = 0; k < kGroupedTerms; k += 16) {
      uint32_t of_a[2][4], of_b[4][2];
#pragma unroll
      for (int m = 0; m < 2; ++m) load_a<kATerms>(of_a[m], a, line + 16 * m, k, lane);
#pragma unroll
      for (int n = 0; n < 4; n += 2) load_b<kBTerms>(of_b[n], of_b[n + 1], b, column + 8 * n, k, lane);
#pragma unroll
      for (int m = 0; m < 2; ++m) {
#pragma unroll
        for (int n = 0; n < 4; ++n) multiply_fragments(sums[m][n], of_a[m], of_b[n][0], of_b[n][1]);
      }
    }
  }

  /// Calls f(line, column, sum) for each number of this thread, counted from the tile's first.
  template <class F>
  __device__ void for_each(int line, int column, const F& f) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int n = 0; n < 4; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i)
          f(line + 16 * m + lane / 4 + i / 2 * 8, column + 8 * n + lane % 4 * 2 + i % 2, sums[m][n][i]);
      }
    }
  }

 private:
  template <bool kTerms>
  __device__ static void load_a(uint32_t (&to)[4], const bf16* a, int line, int k, int lane) {
    if constexpr (kTerms) {
      const bf16* const from = a + (line + lane / 4) * kTermsPitch + k + lane % 4 * 2;
      to[0] = two_terms(from);
      to[1] = two_terms(from + 8 * kTermsPitch);
      to[2] = two_terms(from + 8);
      to[3] = two_terms(from + 8 * kTermsPitch + 8);
    } else {
      const int matrix = lane / 8;
      load_four_transposed(to,
                           a + (k + matrix / 2 * 8 + lane % 8) * kLinesPitch<kGroupedLines> + line + matrix % 2 * 8);
    }
  }

  template <bool kTerms>
  __device__ static void load_b(uint32_t (&left)[2], uint32_t (&right)[2], const bf16* b, int column, int k, int lane) {
    if constexpr (kTerms) {
      const bf16* const from = b + (column + lane / 4) * kTermsPitch + k + lane % 4 * 2;
      left[0] = two_terms(from);
      left[1] = two_terms(from + 8);
      right[0] = two_terms(from + 8 * kTermsPitch);
      right[1] = two_terms(from + 8 * kTermsPitch + 8);
    } else {
      const int matrix = lane / 8;
      uint32_t four[4];
      load_four_transposed(
          four, b + (k + matrix % 2 * 8 + lane % 8) * kLinesPitch<kGroupedColumns> + column + matrix / 2 * 8);
      left[0] = four[0], left[1] = four[1], right[0] = four[2], right[1] = four[3];
    }
  }
};

/// Locates a thread's chunks of an operand of `kLines` lines, stored by terms or by lines.
template <int kLines, bool kTerms>
struct ChunksOfThread {
  static constexpr int kCount = kLines * kGroupedTerms / kChunk / kGroupedThreads;
  static constexpr int kPerRow = (kTerms ? kGroupedTerms : kLines) / kChunk;

  __device__ static int index(int i) { return static_cast<int>(threadIdx.x) + i * kGroupedThreads; }
  __device__ static int line(int i) { return kTerms ? index(i) / kPerRow : index(i) % kPerRow * kChunk; }
  __device__ static int term(int i) { return kTerms ? index(i) % kPerRow * kChunk : index(i) / kPerRow; }
  __device__ static void store(bf16* memory, int i, const uint4& chunk) {
    const int at = kTerms ? line(i) * kTermsPitch + term(i) : term(i) * kLinesPitch<kLines> + line(i);
    *reinterpret_cast<uint4*>(memory + at) = chunk;
  }
};

/// The sums over `terms` terms. chunk_a(line, term) and chunk_b(column, term) load 8 numbers, zeros beyond the end.
template <bool kATerms, bool kBTerms, class A, class B>
__device__ inline WarpTile grouped_tile(GroupedMemory& memory, int64_t terms, int line, int column, const A& chunk_a,
                                        const B& chunk_b) {
  using OfA = ChunksOfThread<kGroupedLines, kATerms>;
  using OfB = ChunksOfThread<kGroupedColumns, kBTerms>;
  uint4 a[OfA::kCount], b[OfB::kCount];
  const auto load = [&](int64_t first) {
#pragma unroll
    for (int i = 0; i < OfA::kCount; ++i) a[i] = chunk_a(OfA::line(i), first + OfA::term(i));
#pragma unroll
    for (int i = 0; i < OfB::kCount; ++i) b[i] = chunk_b(OfB::line(i), first + OfB::term(i));
  };
  const auto store = [&](int buffer) {
#pragma unroll
    for (int i = 0; i < OfA::kCount; ++i) OfA::store(memory.a[buffer], i, a[i]);
#pragma unroll
    for (int i = 0; i < OfB::kCount; ++i) OfB::store(memory.b[buffer], i, b[i]);
  };
  WarpTile tile;
  if (terms <= 0) return tile;
  load(0);
  store(0);
  __syncthreads();
  int buffer = 0;
  for (int64_t first = 0; first < terms; first += kGroupedTerms) {
    const bool more = first + kGroupedTerms < terms;
    if (more) load(first + kGroupedTerms);
    tile.multiply<kATerms, kBTerms>(memory.a[buffer], memory.b[buffer], line, column);
    if (more) store(buffer ^ 1);
    __syncthreads();
    buffer ^= 1;
  }
  return tile;
}

}  // namespace trainctl
