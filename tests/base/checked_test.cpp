// Sizes and counts that a user gave may not fit 64 bits.
#include "engine/base/checked.h"

#include <doctest/doctest.h>

using namespace trainctl;

TEST_CASE("products and sums that do not fit 64 bits are capped, and others are exact") {
  CHECK(capped_product(int64_t{1} << 31, int64_t{1} << 31) == int64_t{1} << 62);
  CHECK(capped_product(int64_t{1} << 32, int64_t{1} << 31) == kCapped);
  CHECK(capped_product(kCapped, 1) == kCapped);
  CHECK(capped_product(kCapped, 0) == 0);
  CHECK(capped_product({1'000'000'000, 1'000'000'000, 1'000'000'000}) == kCapped);
  CHECK(capped_product({2, 3, 4}) == 24);
  CHECK(capped_sum(kCapped, 1) == kCapped);
  CHECK(capped_sum(kCapped - 1, 1) == kCapped);
  CHECK(capped_sum(2, 3) == 5);
}
