// Sums of exponentials in one pass: what softmax and the loss on it share.
#pragma once

#include "engine/ops/rows_cuda.cuh"

namespace trainctl {

/// e^x, 0 where that is no normal number.
__device__ inline float exponential(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 1.4426950408889634f));
  return y;
}

inline constexpr float kLowest = -3.402823466e38f;  // finite: -inf - -inf is no number

/// Sum of e^(x - top) over packs as they come, top the largest so far (Milakov and Gimelshein 2018).
struct Exponentials {
  float top = kLowest;
  float sum = 0;

  /// x - top is not positive, so that the error of the approximate exponential stays under 1e-6 of the largest.
  template <int V>
  __device__ void add(const float (&v)[V]) {
    float high = top;
#pragma unroll
    for (int j = 0; j < V; ++j) high = fmaxf(high, v[j]);
    if (high > top) {
      sum *= exponential(top - high);
      top = high;
    }
#pragma unroll
    for (int j = 0; j < V; ++j) sum += exponential(v[j] - top);
  }
  /// `beside`, too, becomes its sum over the group.
  __device__ void combine(RowGroup& group, float& beside) {
    const float mine = top;
    top = group.max(top);
    float sums[2] = {sum * exponential(mine - top), beside};
    group.sum(sums);
    sum = sums[0], beside = sums[1];
  }
  __device__ void combine(RowGroup& group) {
    const float mine = top;
    top = group.max(top);
    sum = group.sum(sum * exponential(mine - top));
  }
  /// Makes it relative to `other` where that is larger.
  __device__ void raise_top(float other) {
    const float before = top;
    top = fmaxf(top, other);
    sum *= exponential(before - top);
  }
};

}  // namespace trainctl
