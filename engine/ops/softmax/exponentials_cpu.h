// Sums of exponentials of parts of a row, shared by softmax and softmax_cross_entropy.
#pragma once

#include <algorithm>
#include <limits>

#include "engine/ops/cpu/math_cpu.h"

namespace trainctl::cpu {

/// Sum of e^x relative to e^top, where top is the largest x: of a part, then of several. If all x are -inf, the sum is
/// 0.
struct Exponentials {
  float top = std::numeric_limits<float>::lowest();  // finite: -inf - -inf is NaN
  double sum = 0;

  static Exponentials of(const float* x, int64_t n) {
    const float top = n == 0 ? -std::numeric_limits<float>::infinity() : largest(x, n);
    if (top == -std::numeric_limits<float>::infinity()) return {};
    return {top, cpu::sum(n, [=](int64_t i) { return double{exp(x[i] - top)}; })};
  }
  Exponentials operator+(const Exponentials& other) const {
    const float high = std::max(top, other.top);
    return {high, scaled_to(high) + other.scaled_to(high)};
  }
  double scaled_to(float high) const { return sum * double{exp(top - high)}; }
  /// NaN if there is nothing but -inf.
  double reciprocal() const { return sum > 0 ? 1.0 / sum : std::numeric_limits<double>::quiet_NaN(); }
};

/// The sums of the parts of row `row`: stats [parts, rows, numbers], where the first two numbers are (top, sum).
inline Exponentials exponentials_of_parts(const float* stats, int64_t parts, int64_t rows, int64_t numbers,
                                          int64_t row) {
  Exponentials all;
  for (int64_t p = 0; p < parts; ++p) {
    const float* part = stats + (p * rows + row) * numbers;
    all = all + Exponentials{part[0], double{part[1]}};
  }
  return all;
}

}  // namespace trainctl::cpu
