// Tests of a computed permutation: it is bijective for any size, and an element says nothing about the neighboring
// ones.
#include "engine/train/data/permutation.h"

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

using namespace trainctl;

namespace {

/// Pearson's chi-squared statistic, in standard deviations from its mean under the uniform distribution.
double chi_square(const std::vector<int64_t>& counts) {
  double total = 0;
  for (const int64_t count : counts) total += static_cast<double>(count);
  const double expected = total / static_cast<double>(counts.size());
  double sum = 0;
  for (const int64_t count : counts) sum += std::pow(static_cast<double>(count) - expected, 2) / expected;
  const double freedom = static_cast<double>(counts.size()) - 1;
  return (sum - freedom) / std::sqrt(2 * freedom);
}

}  // namespace

TEST_CASE("a keyed permutation visits each of 0 to n - 1 once") {
  for (const uint64_t n : {1, 2, 3, 4, 5, 7, 8, 9, 100, 1000, 1023, 1024, 1025, 65'537, 100'000}) {
    const KeyedPermutation order(n, n * 31);
    std::vector<bool> seen(n);
    for (uint64_t i = 0; i < n; ++i) {
      const uint64_t value = order.at(i);
      REQUIRE(value < n);
      REQUIRE_FALSE(seen[value]);
      seen[value] = true;
      REQUIRE(order.place_of(value) == i);
    }
  }
}

TEST_CASE("a keyed permutation of up to 2^62 samples has an inverse") {
  for (const uint64_t n : {(uint64_t{1} << 33) + 1, uint64_t{10'000'000'000}, kMostPermuted - 1, kMostPermuted}) {
    const KeyedPermutation order(n, 5);
    for (uint64_t i = 0; i < 2000; ++i) {
      const uint64_t place = i * (n / 2000), value = order.at(place);
      REQUIRE(value < n);
      REQUIRE(order.place_of(value) == place);
    }
  }
}

TEST_CASE("another key is another order, and the same key the same") {
  const KeyedPermutation one(100'000, 1), other(100'000, 2), again(100'000, 1);
  int same = 0;
  for (uint64_t i = 0; i < 1000; ++i) {
    CHECK(one.at(i) == again.at(i));
    same += one.at(i) == other.at(i);
  }
  CHECK(same < 5);  // 0.01 are expected
}

TEST_CASE("over many keys a place of a keyed permutation gets each value equally often") {
  for (const uint64_t n : {2, 3, 6, 16, 37, 100}) {
    CAPTURE(n);
    for (const uint64_t place : {uint64_t{0}, n / 2, n - 1}) {
      std::vector<int64_t> counts(n);
      for (uint64_t key = 0; key < 2000 * n; ++key) ++counts[KeyedPermutation(n, key).at(place)];
      CHECK(std::abs(chi_square(counts)) < 5);
    }
  }
}

TEST_CASE("over many keys two neighbours of a keyed permutation get each pair of values equally often") {
  for (const uint64_t n : {5, 12, 40}) {
    CAPTURE(n);
    std::vector<int64_t> counts(n * n);
    const uint64_t keys = 200 * n * n;
    for (uint64_t key = 0; key < keys; ++key) {
      const KeyedPermutation order(n, key);
      ++counts[order.at(1) * n + order.at(2)];
    }
    std::vector<int64_t> pairs;  // Pairs of different values; equal values cannot occur.
    for (uint64_t a = 0; a < n; ++a)
      for (uint64_t b = 0; b < n; ++b)
        if (a != b) pairs.push_back(counts[a * n + b]);
    CHECK(std::abs(chi_square(pairs)) < 5);
  }
}

TEST_CASE("batches of a keyed permutation draw equally from all parts of a large set") {
  constexpr uint64_t kSamples = 1'000'003, kParts = 100;
  const KeyedPermutation order(kSamples, 7);
  std::vector<int64_t> parts(kParts), steps(kParts);
  for (uint64_t i = 0; i < 100'000; ++i) {
    const uint64_t here = order.at(i), next = order.at(i + 1);
    ++parts[here * kParts / kSamples];
    ++steps[(next + kSamples - here) % kSamples * kParts / kSamples];
  }
  CHECK(std::abs(chi_square(parts)) < 5);
  CHECK(std::abs(chi_square(steps)) < 5);
}
