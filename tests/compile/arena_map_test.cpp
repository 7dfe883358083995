// Tests of ArenaMap, which records the arena's history byte by byte.
#include "engine/compile/arena_map.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <random>
#include <vector>

using namespace trainctl;

TEST_CASE("bytes never touched have the default value, and an empty range has no stretch") {
  ArenaMap<int> map;
  int stretches = 0;
  map.for_each(10, 20, [&](int& v) {
    CHECK(v == 0);
    ++stretches;
  });
  CHECK(stretches == 1);
  map.for_each(5, 5, [&](int&) { CHECK(false); });
}

TEST_CASE("an arena map agrees with an array under random writes") {
  std::mt19937 random(7);
  ArenaMap<int> map;
  std::array<int, 200> bytes{};
  for (int round = 1; round < 400; ++round) {
    const int a = static_cast<int>(random() % 200), b = static_cast<int>(random() % 200);
    const int begin = std::min(a, b), end = std::max(a, b);
    map.for_each(begin, end, [&](int& v) { v = round; });
    for (int i = begin; i < end; ++i) bytes[i] = round;
    bool same = true;
    for (int i = 0; i < 200; ++i) map.for_each(i, i + 1, [&](int& v) { same &= v == bytes[i]; });
    REQUIRE(same);
  }
}
