// Tests how durations and losses are written.
#include "engine/base/measures.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

using namespace trainctl;

TEST_CASE("a duration has two units at most") {
  CHECK(format_duration(0) == "0.00s");
  CHECK(format_duration(0.62) == "0.62s");
  CHECK(format_duration(9.994) == "9.99s");
  CHECK(format_duration(9.996) == "10s");
  CHECK(format_duration(59.4) == "59s");
  CHECK(format_duration(59.6) == "1m00s");
  CHECK(format_duration(245) == "4m05s");
  CHECK(format_duration(3599.7) == "1h00m");
  CHECK(format_duration(3725) == "1h02m");
  CHECK(format_duration(51 * 3600.0) == "2d03h");
  CHECK(format_duration(-1) == "?");
  CHECK(format_duration(std::numeric_limits<double>::infinity()) == "?");
  CHECK(format_duration(std::nan("")) == "?");
}

TEST_CASE("a loss that is not finite has a name, and a nan has no sign") {
  using Limits = std::numeric_limits<double>;
  CHECK(not_finite_name(1e300).empty());
  CHECK(not_finite_name(-Limits::quiet_NaN()) == "nan");
  CHECK(not_finite_name(Limits::infinity()) == "inf");
  CHECK(not_finite_name(-Limits::infinity()) == "-inf");
  CHECK(format_loss(2.10342) == "2.1034");
  CHECK(format_loss(-Limits::infinity()) == "-inf");
  CHECK(format_loss(Limits::max()).size() == 309 + 5);
}
