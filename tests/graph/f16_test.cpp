// Conversions of half precision.
#include "engine/graph/f16.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

using namespace trainctl;

TEST_CASE("every f16 becomes the float of its value, and back") {
  for (uint32_t i = 0; i < 65536; ++i) {
    const auto bits = static_cast<uint16_t>(i);
    const int exponent = static_cast<int>(i >> 10 & 31), fraction = static_cast<int>(i & 1023);
    const float value = from_f16(bits);
    if (exponent == 31 && fraction != 0) {
      CHECK(std::isnan(value));
      CHECK(std::isnan(from_f16(to_f16(value))));
      continue;
    }
    const double magnitude = exponent == 31  ? std::numeric_limits<double>::infinity()
                             : exponent == 0 ? std::ldexp(fraction, -24)
                                             : std::ldexp(1024 + fraction, exponent - 25);
    REQUIRE(value == (i >= 32768 ? -magnitude : magnitude));
    REQUIRE(to_f16(value) == bits);
  }
}

TEST_CASE("a float becomes the nearest f16, ties to even, and infinity from 65520 on") {
  for (uint32_t i = 0; i < 0x7bff; ++i) {
    const float low = from_f16(static_cast<uint16_t>(i)), high = from_f16(static_cast<uint16_t>(i + 1));
    const float middle = low + (high - low) / 2;  // exact
    REQUIRE(to_f16(middle) == (i % 2 == 0 ? i : i + 1));
    REQUIRE(to_f16(std::nextafter(middle, low)) == i);
    REQUIRE(to_f16(std::nextafter(middle, high)) == i + 1);
  }
  CHECK(to_f16(65519.996f) == 0x7bff);
  CHECK(to_f16(65520.0f) == 0x7c00);
  CHECK(to_f16(-1e30f) == 0xfc00);
  CHECK(to_f16(1e-30f) == 0);
}
