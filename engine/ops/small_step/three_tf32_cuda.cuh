// True f32 products on tensor cores. A float is split into two TF32 numbers, x = high + low to within 2^-22 of x, and
// a b = high high + high low + low high: the omitted low low is below f32's own rounding. mma computes products exactly
// and adds them in f32; small terms are summed apart from the large ones. A value that is not finite stays so, though
// an Inf becomes a NaN.
// (Ootomo, Yokota: Recovering single precision accuracy from Tensor Cores; CUTLASS calls it 3xTF32.)
//
// Fragments of mma.m16n8k8, for lane = 4 group + in_group:
//   A [16 x 8]  (group, in_group), (group + 8, in_group), (group, in_group + 4), (group + 8, in_group + 4)
//   B [8 x 8]   (in_group, group), (in_group + 4, group)
//   C [16 x 8]  (group, 2 in_group), (group, 2 in_group + 1), (group + 8, 2 in_group), (group + 8, 2 in_group + 1)
#pragma once

#include <cstdint>

namespace trainctl::cuda {

struct Split {
  uint32_t high, low;
};

/// Rounds to nearest in integer arithmetic, which is faster than cvt. mma reads the upper 19 bits of an operand, so it
/// truncates the low part. The integer sum may turn a NaN into another value in `high`; `low` is then still NaN.
__device__ inline Split split(float v) {
  constexpr uint32_t kHalf = 0x1000, kKept = 0xffffe000;
  const uint32_t high = (__float_as_uint(v) + kHalf) & kKept;
  return {high, __float_as_uint(v - __uint_as_float(high))};
}

__device__ inline void mma(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}

/// A fragment of kCount numbers, split.
template <int kCount>
struct Fragment {
  uint32_t high[kCount], low[kCount];

  __device__ void set(int i, float v) {
    const Split s = split(v);
    high[i] = s.high;
    low[i] = s.low;
  }
};

/// Sums of a 16 x 8 tile; the terms of low parts are kept apart until the end. mma truncates where f32 would round, and
/// those errors add up, so keep() now and then moves the sums into sums that are rounded.
struct TileSums {
  float large[4] = {}, small[4] = {}, kept[4] = {};

  __device__ void keep() {
#pragma unroll
    for (int i = 0; i < 4; ++i) kept[i] += large[i], large[i] = 0;
  }
  __device__ float sum(int i) const { return kept[i] + (large[i] + small[i]); }
};

/// Adds products to the sums of kTall x kWide tiles. Dependent mma instructions are separated by independent ones.
template <int kTall, int kWide>
__device__ void add_products(const Fragment<4> (&a)[kTall], const float (&b)[kWide][2],
                             TileSums (&sums)[kTall][kWide]) {
  constexpr int kAtOnce = 4 / kTall;
#pragma unroll
  for (int first = 0; first < kWide; first += kAtOnce) {
    Fragment<2> right[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce && first + j < kWide; ++j) {
      right[j].set(0, b[first + j][0]);
      right[j].set(1, b[first + j][1]);
    }
#pragma unroll
    for (int term = 0; term < 3; ++term) {
#pragma unroll
      for (int j = 0; j < kAtOnce && first + j < kWide; ++j) {
#pragma unroll
        for (int i = 0; i < kTall; ++i) {
          TileSums& to = sums[i][first + j];
          mma(term == 1 ? to.large : to.small, term == 0 ? a[i].low : a[i].high,
              term == 2 ? right[j].low : right[j].high);
        }
      }
    }
  }
}

}  // namespace trainctl::cuda
