// Sums of exponentials in one pass, shared by softmax and softmax_cross_entropy.
#pragma once

#include "engine/ops/cuda/rows_cuda.cuh"

namespace trainctl {

inline constexpr float kLog2e = 1.4426950408889634f;

/// 2^x; 0 if that is subnormal.
__device__ inline float power_of_two(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

inline constexpr float kFar = 0x1p29f;              // beyond it f32 numbers are at least 32 apart
inline constexpr float kAhead = 2;                  // by how much add() sets the top above the largest x
inline constexpr float kLowest = -3.402823466e38f;  // finite: -inf - -inf is NaN

/// Sum of e^x relative to e^top (Milakov and Gimelshein 2018); top is the largest x so far, or a little more. The
/// exponent of 2 is one fused operation, x * log2e - t, t = top * log2e rounded to f32. That rounding shifts all
/// exponents equally; but if top is far() from 0, the shift exceeds the range of exponents, or t overflows. There the
/// exponent is x - top: 0, or so far below 0 that the base does not matter.
struct Exponentials {
  float top = kLowest;
  float sum = 0;

  /// e^(x - top) for x <= top: the error of the approximate power stays under 1e-6 of the largest.
  __device__ float of(float x) const { return power_of_two(exponent(x)); }
  /// log2 of that, unless far().
  __device__ float exponent(float x) const { return fmaf(x, unit_, -top_in_units_); }
  __device__ bool far() const { return fabsf(top) > kFar; }

  /// Adds a pack. The top is raised by more than needed, so that few of the next packs raise it again.
  template <int V>
  __device__ void add(const float (&v)[V]) {
    float high = top;
#pragma unroll
    for (int j = 0; j < V; ++j) high = fmaxf(high, v[j]);
    if (high > top) [[unlikely]]
      raise(high + kAhead);
    add_below_top(v);
  }
  /// Adds a pack without elements above the top.
  template <int V>
  __device__ void add_below_top(const float (&v)[V]) {
#pragma unroll
    for (int j = 0; j < V; ++j) sum += of(v[j]);
  }
  /// Adds a row whose load was started; if registers hold it, the top is found first.
  template <int V, class Operand>
  __device__ void add_row(const RowPart<V>& part, Operand& row) {
    if constexpr (Operand::kInRegisters) {
      set_top(row.largest(part, top));
      read_row(
          part, [&](int, const auto& a) { add_below_top(a.v); }, row);
    } else {
      read_row(
          part, [&](int, const auto& a) { add(a.v); }, row);
    }
  }
  /// Combines the sums of a group's threads. `beside` becomes its sum over the group too.
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
  /// Adds the sum of another part of the row, relative to e^its_top.
  __device__ void add_part(float its_top, float its_sum) {
    if (its_top > top) raise(its_top);
    sum += its_sum * power_of_two(__fmul_rn(its_top, unit_) - top_in_units_);
  }
  /// Sums a row whose load was started, over a group. The top becomes the largest x itself: statistics do not depend on
  /// how the row was divided among threads. `edit(place, pack)` may change a pack that is not in registers.
  template <int V, class Operand, class Edit>
  __device__ void sum_row(RowGroup& group, const RowPart<V>& part, Operand& row, Edit edit) {
    if constexpr (Operand::kInRegisters) {
      add_row(part, row);
      combine(group);
    } else {
      float high = kLowest;
      read_row(
          part,
          [&](int place, auto a) {
            edit(place, a);
            for (const float v : a.v) high = fmaxf(high, v);
            add(a.v);
          },
          row);
      combine(group);
      raise(group.max(high));  // by at most kAhead downwards
    }
  }
  /// Makes the sum relative to e^high, which is the new top: no x of the sum is above it, and high >= top - kAhead.
  __device__ void raise(float high) {
    const float before = top;
    set_top(high);
    sum *= power_of_two(__fmul_rn(before, unit_) - top_in_units_);  // rounded like the top: equal tops give 1
  }

 private:
  __device__ void set_top(float high) {
    top = high;
    unit_ = far() ? 1.0f : kLog2e;
    top_in_units_ = __fmul_rn(high, unit_);
  }

  float unit_ = 1, top_in_units_ = kLowest;
};

/// The sum of row `row` from those of its parts: stats [parts, rows, numbers], where the first two numbers are (top,
/// sum).
__device__ inline Exponentials exponentials_of_parts(const float* stats, int parts, int64_t rows, int numbers,
                                                     int64_t row) {
  Exponentials all;
  for (int p = 0; p < parts; ++p) {
    const float* part = stats + (p * rows + row) * numbers;
    all.add_part(part[0], part[1]);
  }
  return all;
}

}  // namespace trainctl
