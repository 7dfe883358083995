// Sums of exponentials in one pass: what softmax and the loss on it share.
#pragma once

#include "engine/ops/rows_cuda.cuh"

namespace trainctl {

inline constexpr float kLog2e = 1.4426950408889634f;

/// 2^x, 0 where that is no normal number.
__device__ inline float power_of_two(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

inline constexpr float kLowest = -2.3e38f;  // finite, and in powers of two: -inf - -inf is no number

/// Sum of e^x relative to e^top (Milakov and Gimelshein 2018): top is the largest so far, and is taken in powers of two
/// as f32 has it, so that one fused operation makes an exponent.
struct Exponentials {
  float top = kLowest;
  float sum = 0;

  /// x is at most the top, so that the error of the approximate power stays under 1e-6 of the largest.
  __device__ float of(float x) const { return power_of_two(exponent(x)); }
  /// log2 of that.
  __device__ float exponent(float x) const { return fmaf(x, kLog2e, -in_twos(top)); }

  /// Of packs as they come.
  template <int V>
  __device__ void add(const float (&v)[V]) {
    float high = top;
#pragma unroll
    for (int j = 0; j < V; ++j) high = fmaxf(high, v[j]);
    if (high > top) raise(high);
    add_below_top(v);
  }
  /// None of which is above the top.
  template <int V>
  __device__ void add_below_top(const float (&v)[V]) {
#pragma unroll
    for (int j = 0; j < V; ++j) sum += of(v[j]);
  }
  /// Of a row that was started: where registers hold it, the top is found first.
  template <int V, class Operand>
  __device__ void add_row(const RowPart<V>& part, Operand& row) {
    if constexpr (Operand::kInRegisters) {
      top = row.largest(part, top);
      read_row(part, [&](int, const auto& a) { add_below_top(a.v); }, row);
    } else {
      read_row(part, [&](int, const auto& a) { add(a.v); }, row);
    }
  }
  /// `beside`, too, becomes its sum over the group.
  __device__ void combine(RowGroup& group, float& beside) {
    raise(group.max(top));
    float sums[2] = {sum, beside};
    group.sum(sums);
    sum = sums[0], beside = sums[1];
  }
  __device__ void combine(RowGroup& group) {
    raise(group.max(top));
    sum = group.sum(sum);
  }
  /// Makes it relative to what is not below the top.
  __device__ void raise(float high) {
    sum *= power_of_two(in_twos(top) - in_twos(high));
    top = high;
  }

 private:
  __device__ static float in_twos(float x) { return __fmul_rn(x, kLog2e); }  // rounded: never part of a fused operation
};

}  // namespace trainctl
