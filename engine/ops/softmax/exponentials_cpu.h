// Sums of exponentials of parts of a row, shared by softmax and softmax_cross_entropy.
#pragma once

#include <algorithm>
#include <limits>

#include "engine/ops/cpu/math_cpu.h"

namespace trainctl::cpu {

inline constexpr float kLowest = std::numeric_limits<float>::lowest();  // finite: -inf - -inf is NaN

/// Sum of e^x relative to e^top, top the largest x: of a part, then of several.
struct Exponentials {
  float top = kLowest;
  double sum = 0;

  static Exponentials of(const float* x, int64_t n) {
    if (n == 0) return {};
    const float top = at_least(largest(x, n), kLowest);
    return {top, cpu::sum(n, [=](int64_t i) { return double{exp(x[i] - top)}; })};
  }
  Exponentials operator+(const Exponentials& other) const {
    const float high = std::max(top, other.top);
    return {high, scaled_to(high) + other.scaled_to(high)};
  }
  double scaled_to(float high) const { return sum * double{exp(top - high)}; }
};

/// The parts' sums of row `row`: stats [parts, rows, numbers], of which the first two are (top, sum).
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
