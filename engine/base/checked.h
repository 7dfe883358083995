// Products and sums of sizes and counts that a user gave. What does not fit an int64_t becomes kCapped, so a limit
// that is compared with the result refuses it; the result never wraps around.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

namespace trainctl {

inline constexpr int64_t kCapped = std::numeric_limits<int64_t>::max();

/// a * b, at most kCapped. a, b >= 0.
constexpr int64_t capped_product(int64_t a, int64_t b) {
  int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? kCapped : product;
}

/// a + b, at most kCapped. a, b >= 0.
constexpr int64_t capped_sum(int64_t a, int64_t b) {
  int64_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? kCapped : sum;
}

/// Product of all `factors`, such as the number of elements of a shape.
inline int64_t capped_product(const std::vector<int64_t>& factors) {
  int64_t product = 1;
  for (const int64_t factor : factors) product = capped_product(product, factor);
  return product;
}

}  // namespace trainctl
