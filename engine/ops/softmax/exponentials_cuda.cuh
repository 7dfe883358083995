// Sums of exponentials in one pass: what softmax and the loss on it share.
#pragma once

#include "engine/ops/cuda/rows_cuda.cuh"

namespace trainctl {

inline constexpr float kLog2e = 1.4426950408889634f;

/// 2^x, 0 where that is no normal number.
__device__ inline float power_of_two(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

inline constexpr float kFar = 0x1p29f;  // f32 has no two numbers beyond it that are less than 32 apart
inline constexpr float kAhead = 2;
inline constexpr float kLowest = -3.402823466e38f;  // finite: -inf - -inf is no number

/// Sum of e^x relative to e^top (Milakov and Gimelshein 2018): top is the largest so far, or a little more. An exponent
/// of 2 is one fused operation: x * log2e less top * log2e as f32 has it. What the rounding takes from one it takes from
/// all; but of a top far from 0 that is more than there are powers of two, or there is no such product. There it is
/// x - top: 0, or so far below that the base does not matter.
struct Exponentials {
  float top = kLowest;
  float sum = 0;

  /// x is at most the top, so that the error of the approximate power stays under 1e-6 of the largest.
  __device__ float of(float x) const { return power_of_two(exponent(x)); }
  /// log2 of that, where top is not far.
  __device__ float exponent(float x) const { return fmaf(x, unit_, -top_in_units_); }
  __device__ bool far() const { return fabsf(top) > kFar; }

  /// Of packs as they come. The top goes ahead of them, so that few of the next ones raise it.
  template <int V>
  __device__ void add(const float (&v)[V]) {
    float high = top;
#pragma unroll
    for (int j = 0; j < V; ++j) high = fmaxf(high, v[j]);
    if (high > top) [[unlikely]] raise(high + kAhead);
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
      set_top(row.largest(part, top));
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
    const float before = top;
    set_top(high);
    sum *= power_of_two(__fmul_rn(before, unit_) - top_in_units_);  // rounded as the top is: equal ones give 1
  }

 private:
  __device__ void set_top(float high) {
    top = high;
    unit_ = far() ? 1.0f : kLog2e;
    top_in_units_ = __fmul_rn(high, unit_);
  }

  float unit_ = 1, top_in_units_ = kLowest;
};

}  // namespace trainctl
