// Many sums over the lanes of a warp at once: with each exchange a lane gives half of its sums away and takes the other
// half's parts, so that N sums take about N exchanges where each by itself takes five. Any number up to 32, in a fixed
// order.
#pragma once

#include "engine/ops/launch_cuda.h"

namespace trainctl::cuda {

/// The lane whose number differs in bit kBit takes the upper half of the sums, and this lane the other one of both.
template <int kBit, int kCount, int kSize>
__device__ __forceinline__ void exchange_half(float (&sums)[kSize]) {
  constexpr int kHalf = (kCount + 1) / 2;
  const bool upper = (threadIdx.x & kBit) != 0;
#pragma unroll
  for (int i = 0; i < kHalf; ++i) {
    const float low = sums[i], high = i + kHalf < kCount ? sums[i + kHalf < kSize ? i + kHalf : 0] : 0.0f;
    sums[i] = (upper ? high : low) + __shfl_xor_sync(~0u, upper ? low : high, kBit);
  }
}

/// Leaves each lane with one sum over all lanes, sums[0]: own_sum() says which.
template <int kCount, int kBit = 16, int kSize>
__device__ __forceinline__ void share_sums(float (&sums)[kSize]) {
  if constexpr (kBit > 0 && kCount == 1) {
    sums[0] += __shfl_xor_sync(~0u, sums[0], kBit);
    share_sums<1, kBit / 2>(sums);
  } else if constexpr (kBit > 0) {
    exchange_half<kBit, kCount>(sums);
    share_sums<(kCount + 1) / 2, kBit / 2>(sums);
  }
}

/// Which of kCount sums; -1: none. Several lanes may have the same.
template <int kCount>
__device__ __forceinline__ int own_sum(int lane) {
  int first = 0, left = kCount;
#pragma unroll
  for (int bit = 16, count = kCount; bit > 0; bit /= 2) {
    if (count == 1) continue;
    count = (count + 1) / 2;
    first += (lane & bit) != 0 ? count : 0;
    left = (lane & bit) != 0 ? left - count : min(left, count);
  }
  return left > 0 ? first : -1;
}

}  // namespace trainctl::cuda
