// Tests the counts of histograms against a count of the values one by one.
#include "engine/train/files/histogram.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

using namespace trainctl;

namespace {

/// Pseudo-random numbers from a fixed seed, of both signs, spread over many octaves.
std::vector<float> numbers(size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> exponents(0, 6), signs(0, 1);
  std::vector<float> values(count);
  for (float& value : values) value = std::copysign(std::exp2(exponents(random)), signs(random));
  return values;
}

Histogram of(const std::vector<float>& values) {
  Histogram histogram;
  histogram.add(values);
  return histogram;
}

}  // namespace

TEST_CASE("a histogram's bucket has the values between the limit before it and its own") {
  std::vector<float> values = numbers(5000, 3);
  for (const float edge : {0.0F, 1.0F, -1.0F, 1.125F, std::numeric_limits<float>::max(),
                           std::numeric_limits<float>::lowest(), std::numeric_limits<float>::denorm_min()})
    values.push_back(edge);
  const auto buckets = of(values).buckets();
  REQUIRE(buckets.size() > 100);
  CHECK(buckets.front().count == 0);  // its limit is where the next one begins
  int64_t all = 0;
  for (size_t i = 1; i < buckets.size(); ++i) {
    const double low = buckets[i - 1].limit, high = buckets[i].limit;
    REQUIRE(low < high);
    const auto inside = std::count_if(values.begin(), values.end(), [&](float value) {
      const auto v = static_cast<double>(value);  // ranges of absolute values: of a negative one the upper limit is in
      return v < 0 ? low < v && v <= high : low <= v && v < high;
    });
    CAPTURE(low);
    CAPTURE(high);
    CHECK(buckets[i].count == inside);
    all += buckets[i].count;
  }
  CHECK(all == static_cast<int64_t>(values.size()));
}

TEST_CASE("a range of a histogram is an eighth of an octave wide") {
  for (const float value : {1.0F, 1.3F, -3.7F, 1e-20F, 5e20F}) {
    const auto buckets = of({value}).buckets();
    REQUIRE(buckets.size() == 2);
    CHECK(buckets[1].count == 1);
    const double low = std::min(std::abs(buckets[0].limit), std::abs(buckets[1].limit));
    const double high = std::max(std::abs(buckets[0].limit), std::abs(buckets[1].limit));
    CHECK(high / low >= 16.0 / 15);
    CHECK(high / low <= 9.0 / 8);
  }
}

TEST_CASE("a histogram knows the extremes and sums of its values") {
  const std::vector<float> values = {0.5F, -2, 3, 0};
  const Histogram h = of(values);
  CHECK(h.count() == 4);
  CHECK(h.min() == -2);
  CHECK(h.max() == 3);
  CHECK(h.sum() == 1.5);
  CHECK(h.sum_of_squares() == 13.25);
  CHECK(of({}).buckets().empty());
  CHECK(of({}).min() == 0);
}

TEST_CASE("values that are not finite are counted apart") {
  const Histogram h = of({1, std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity()});
  CHECK(h.count() == 1);
  CHECK(h.not_finite() == 3);
  CHECK(h.sum() == 1);
  CHECK(h.buckets().size() == 2);
}

TEST_CASE("histograms of parts add up to that of the whole, and travel as bytes") {
  const std::vector<float> first = numbers(1000, 5), second = numbers(700, 6);
  std::vector<float> both = first;
  both.insert(both.end(), second.begin(), second.end());
  Histogram sum = of(first);
  sum.add(of(second));
  const Histogram whole = of(both);
  CHECK(sum.count() == whole.count());
  CHECK(sum.min() == whole.min());
  CHECK(sum.max() == whole.max());
  CHECK(sum.sum() == doctest::Approx(whole.sum()));
  const auto same = [](const Histogram::Bucket& a, const Histogram::Bucket& b) {
    return a.limit == b.limit && a.count == b.count;
  };
  const auto of_sum = sum.buckets(), of_whole = whole.buckets();
  CHECK(std::equal(of_sum.begin(), of_sum.end(), of_whole.begin(), of_whole.end(), same));

  const std::map<std::string, Histogram> sent = {{"weights/a", sum}, {"gradients/a", of({})}};
  CHECK(histograms_of(to_bytes(sent)) == sent);
}
