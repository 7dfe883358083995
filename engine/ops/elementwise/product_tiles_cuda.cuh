// The products of a chain (product_chain_cuda.cu): sizes, shared memory, and the tensor cores' fragments.
#pragma once

#include <utility>

#include "engine/ops/cuda/async_copies_cuda.cuh"
#include "engine/ops/elementwise/chain_cuda.cuh"

namespace trainctl::chains {

inline constexpr int kWarps = 8, kColumns = 32, kRows = 16, kTermsOfStep = 16;
inline constexpr int kValues = 16;  ///< values per thread: 8 columns of two rows
inline constexpr int kMostSteps = 4;

/// More steps of terms leave less shared memory for passes ahead.
template <int kStepsOfTerms>
constexpr int kMostPasses = kStepsOfTerms == 1 ? 6 : 4;
template <int kStepsOfTerms>
constexpr int kRing = kStepsOfTerms == 1 ? 3 : 2;

struct Place {
  int64_t rows = 0, columns = 0;
  unsigned across = 1;  ///< blocks side by side; consecutive blocks are in the same rows
  int passes = 1;       ///< passes of 16 rows, per block
  unsigned large = 0;   ///< bit k: input k is large
};

__device__ inline void multiply(float (&sums)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/// A thread's fragments of q, by tile, step of terms and half of a step.
template <int kStepsOfTerms>
struct Columns {
  uint32_t of[4][kStepsOfTerms][2];

  /// Loads all of them before it uses any. `column`: the thread's column of tile 0; `term`: its first.
  __device__ void load(const Factors& f, int64_t columns, int64_t column, int term) {
    const auto* const q = static_cast<const uint16_t*>(f.q.p);
    if (f.nr)
      for_all([&](int tile, int at, uint32_t& to) {
        to = *reinterpret_cast<const uint32_t*>(q + (column + tile * 2) * f.terms + existing(f, at + term));
      });
    else
      for_all([&](int tile, int at, uint32_t& to) {
        const uint16_t* const from = q + existing(f, at + term) * columns + column + tile * 2;
        to = from[0] | static_cast<uint32_t>(from[columns]) << 16;
      });
  }
  /// Stores the fragments; zeros beyond the last term.
  __device__ void store(const Factors& f, int term, uint2 (&to)[4][kStepsOfTerms][32]) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int tile = 0; tile < 4; ++tile) {
#pragma unroll
      for (int s = 0; s < kStepsOfTerms; ++s) {
        const int first = s * kTermsOfStep + term;
        to[tile][s][lane] = {first < f.terms ? of[tile][s][0] : 0, first + 8 < f.terms ? of[tile][s][1] : 0};
      }
    }
  }

 private:
  /// The number of terms is a multiple of 8.
  __device__ static int64_t existing(const Factors& f, int term) { return term < f.terms ? term : term % 8; }

  template <class Load>
  __device__ void for_all(Load load) {
#pragma unroll
    for (int tile = 0; tile < 4; ++tile) {
#pragma unroll
      for (int s = 0; s < kStepsOfTerms; ++s) {
#pragma unroll
        for (int half = 0; half < 2; ++half) load(tile, s * kTermsOfStep + half * 8, of[tile][s][half]);
      }
    }
  }
};

/// The factors of all products in shared memory, and the large operands of the passes ahead.
template <int kStepsOfTerms, int kFactors, int kLarge>
struct Memory {
  static constexpr int kPitch = kStepsOfTerms * kTermsOfStep + 8;  ///< 8 rows are in different banks
  uint2 q[kFactors][kWarps][4][kStepsOfTerms][32];                 ///< fragments, by lane
  uint16_t p[kFactors][kMostPasses<kStepsOfTerms> * kRows * kPitch];
  uint4 ahead[kRing<kStepsOfTerms>][kLarge == 0 ? 1 : kLarge][2][kLarge == 0 ? 1 : kWarps * 32];
};
/// Requests the block's rows of p; zeros beyond the last row and term.
template <int kPitch>
__device__ inline void request_rows(const Factors& f, int64_t first, const Place& place, uint16_t* to) {
  constexpr int kPacks = kPitch / 8 - 1;
  const auto* const from = static_cast<const uint16_t*>(f.p.p);
  for (int i = static_cast<int>(threadIdx.x); i < place.passes * kRows * kPacks; i += kWarps * 32) {
    const int row = i / kPacks, term = i % kPacks * 8;
    const bool there = first + row < place.rows && term < f.terms;
    request_16(to + row * kPitch + term, from + (there ? (first + row) * f.terms + term : 0), there);
  }
}

__device__ inline uint32_t two(const uint16_t* from) { return *reinterpret_cast<const uint32_t*>(from); }

/// A thread's 16 elements of a product. `p`: the thread's first term of its first row.
template <int kStepsOfTerms, int kPitch>
__device__ inline void product(const uint2 (&q)[4][kStepsOfTerms][32], const uint16_t* p, float (&v)[kValues]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float sums[4][4] = {};
#pragma unroll
  for (int s = 0; s < kStepsOfTerms; ++s) {
    const uint16_t* const at = p + s * kTermsOfStep;
    const uint32_t rows[4] = {two(at), two(at + 8 * kPitch), two(at + 8), two(at + 8 * kPitch + 8)};
#pragma unroll
    for (int tile = 0; tile < 4; ++tile) {
      const uint2 columns = q[tile][s][lane];
      const uint32_t b[2] = {columns.x, columns.y};
      multiply(sums[tile], rows, b);
    }
  }
#pragma unroll
  for (int tile = 0; tile < 4; ++tile) {
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i / 2 * 8 + tile * 2 + i % 2] = sums[tile][i];
  }
}

}  // namespace trainctl::chains
