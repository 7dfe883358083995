// The least sum under limits: against all settings of small problems, and what must hold of each of its steps.
#include "engine/search/limited_sum.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
#include <random>

#include "engine/search/binding_times.h"
#include "engine/search/fold_limited.h"
#include "engine/search/messages.h"
#include "engine/search/part_sum.h"
#include "engine/search/peaks.h"
#include "engine/search/time_prices.h"

using namespace trainctl;

namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

int drawn_integer(std::mt19937& random, int low, int high) {
  return low + static_cast<int>(random() % static_cast<unsigned>(high - low + 1));
}

/// Whole costs; one of `never` pairs must not be. `tight`: from 0, with little room, to 100.
LimitedTables drawn(std::mt19937& random, int variables, int tight, int never = 6) {
  LimitedTables tables;
  constexpr int kTimes = 12;
  int64_t all = 0;
  for (int v = 0; v < variables; ++v) {
    const int size = drawn_integer(random, 1, 4);
    tables.sizes.push_back(size);
    CostTable alone{{v}, {}};
    for (int x = 0; x < size; ++x) alone.values.push_back(drawn_integer(random, 0, 30));
    tables.tables.push_back(alone);
    for (int times = drawn_integer(random, 0, 2); times > 0; --times) {
      const int first = drawn_integer(random, 0, kTimes - 1);
      Holding holding{v, first, drawn_integer(random, first, kTimes), {}};
      for (int x = 0; x < size; ++x) holding.amounts.push_back(drawn_integer(random, 0, 20));
      all += 10;
      tables.holdings.push_back(holding);
    }
  }
  for (int count = drawn_integer(random, variables - 1, 2 * variables); count > 0 && variables > 1; --count) {
    const int a = drawn_integer(random, 0, variables - 2), b = drawn_integer(random, a + 1, variables - 1);
    CostTable pair{{a, b}, {}};
    for (int entry = tables.sizes[static_cast<size_t>(a)] * tables.sizes[static_cast<size_t>(b)]; entry > 0; --entry)
      pair.values.push_back(drawn_integer(random, 1, never) == 1 ? kInfinite : drawn_integer(random, 0, 40));
    tables.tables.push_back(pair);
  }
  for (int t = 0; t < kTimes; ++t) tables.limits.push_back(all * (tight + drawn_integer(random, 0, 20)) / 100);
  return tables;
}

template <class Take>
void each_setting(const std::vector<int>& sizes, const Take& take) {
  std::vector<int> setting(sizes.size(), 0);
  for (size_t v = sizes.size();;) {
    take(setting);
    for (v = sizes.size(); v > 0 && ++setting[v - 1] == sizes[v - 1]; --v) setting[v - 1] = 0;
    if (v == 0) return;
  }
}

/// Both infinite, or equal but for rounding.
bool same(double a, double b) { return a == b || a == doctest::Approx(b); }

double best_of_all(const LimitedTables& tables) {
  double best = kInfinite;
  each_setting(tables.sizes,
               [&](const std::vector<int>& setting) { best = std::min(best, sum_within_limits(tables, setting)); });
  return best;
}

LimitedSearch counted(int64_t parts, uint64_t seed = 1) {
  LimitedSearch search;
  search.parts = parts;
  search.seed = seed;
  return search;
}

std::vector<double> alone_of(const LimitedTables& tables, const PartSum& sum) {
  std::vector<double> alone(sum.places(), 0);
  for (const CostTable& table : tables.tables)
    if (table.variables.size() == 1)
      for (size_t x = 0; x < table.values.size(); ++x) alone[sum.place(table.variables[0]) + x] += table.values[x];
  return alone;
}

}  // namespace

TEST_CASE("limited sum: of small problems it is the least of all settings, never over a limit, never below the bound") {
  std::mt19937 random(7);
  int solved = 0, none = 0;
  for (int round = 0; round < 400; ++round) {
    CAPTURE(round);
    const LimitedTables tables = drawn(random, drawn_integer(random, 1, 8), drawn_integer(random, 10, 60));
    const double best = best_of_all(tables);
    const LimitedSum sum = limited_sum(tables, counted(300));
    CHECK(sum.bound <= best * (1 + 1e-9));
    REQUIRE(sum.found == (best < kInfinite));
    if (!sum.found) {
      ++none;
      continue;
    }
    CHECK(sum.value == sum_within_limits(tables, sum.setting));
    CHECK(sum.value == doctest::Approx(best));
    ++solved;
  }
  CHECK(solved > 100);
  CHECK(none > 20);
}

TEST_CASE("limited sum: the same seed and count find the same setting") {
  std::mt19937 random(3);
  const LimitedTables tables = drawn(random, 60, 40, 1000);
  const LimitedSum first = limited_sum(tables, counted(200, 5)), second = limited_sum(tables, counted(200, 5));
  CHECK(first.found);
  CHECK(first.setting == second.setting);
  CHECK(first.value == second.value);
  CHECK(first.bound == second.bound);
}

TEST_CASE("limited sum: a problem that no setting solves has an infinite bound where one variable holds too much") {
  LimitedTables tables{{2}, {{{0}, {1, 2}}}, {{0, 0, 1, {5, 6}}}, {4}};
  LimitedSum sum = limited_sum(tables, counted(10));
  CHECK_FALSE(sum.found);
  CHECK(sum.bound == kInfinite);
  tables.limits[0] = 5;
  sum = limited_sum(tables, counted(10));
  CHECK(sum.found);
  CHECK(sum.value == 1);
}

TEST_CASE("limited sum: without parts it still finds a setting that keeps the limits") {
  std::mt19937 random(17);
  int found = 0;
  for (int round = 0; round < 20; ++round) {
    CAPTURE(round);
    const LimitedTables tables = drawn(random, 40, 40, 1000);
    const LimitedSum sum = limited_sum(tables, counted(0));
    if (!sum.found) continue;
    ++found;
    CHECK(sum.value < kInfinite);
    CHECK(sum.value == sum_within_limits(tables, sum.setting));
    CHECK(sum.value >= sum.bound * (1 - 1e-9));
  }
  CHECK(found > 15);
}

TEST_CASE(
    "limited sum: of a grid whose elimination makes far more sums than its tables have, each seed finds the least") {
  constexpr int kSide = 7, kValues = 5;
  std::mt19937 random(21);
  LimitedTables tables;
  for (int v = 0; v < kSide * kSide; ++v) {
    tables.sizes.push_back(kValues);
    tables.tables.push_back({{v}, {}});
    for (int x = 0; x < kValues; ++x) tables.tables.back().values.push_back(drawn_integer(random, 0, 30));
    for (int w : {v + 1, v + kSide}) {
      if (w >= kSide * kSide || (w == v + 1 && w % kSide == 0)) continue;
      CostTable pair{{v, w}, {}};
      for (int entry = 0; entry < kValues * kValues; ++entry)
        pair.values.push_back(drawn_integer(random, 0, 100) * drawn_integer(random, 0, 100));
      tables.tables.push_back(pair);
    }
  }
  bool exact = true;
  const double least = least_sum(tables.sizes, tables.tables, exact).value;
  REQUIRE(exact);
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    CAPTURE(seed);
    CHECK(limited_sum(tables, counted(2000, seed)).value == doctest::Approx(least));
  }
}

TEST_CASE("limited sum: stops when it is told to") {
  std::mt19937 random(3);
  const LimitedTables tables = drawn(random, 60, 40, 1000);
  LimitedSearch search = counted(std::numeric_limits<int64_t>::max());
  int asked = 0;
  search.go_on = [&] { return ++asked < 20; };
  CHECK(limited_sum(tables, search).bound < kInfinite);
  CHECK(asked >= 20);
  CHECK(asked < 60);
}

TEST_CASE(
    "folding keeps the least sum, and a setting of what is left stands for one of the whole that costs the same") {
  std::mt19937 random(11);
  int folded_variables = 0;
  for (int round = 0; round < 300; ++round) {
    CAPTURE(round);
    const LimitedTables tables = drawn(random, drawn_integer(random, 1, 7), drawn_integer(random, 20, 60));
    const double best = best_of_all(tables);
    const FoldedTables folded = fold(tables);
    if (!folded.possible) {
      CHECK(best == kInfinite);
      continue;
    }
    folded_variables += static_cast<int>(folded.steps.size());
    double least = kInfinite;
    each_setting(folded.left.sizes, [&](const std::vector<int>& setting) {
      const double sum = folded.constant + sum_within_limits(folded.left, setting);
      CHECK(same(sum, sum_within_limits(tables, folded.unfold(setting))));
      least = std::min(least, sum);
    });
    CHECK(same(least, best));
  }
  CHECK(folded_variables > 300);
}

TEST_CASE("the sum of a part is the least with the others as they are, and of all variables it is least_sum()") {
  std::mt19937 random(5);
  std::mt19937_64 draw(1);
  for (int round = 0; round < 100; ++round) {
    CAPTURE(round);
    const LimitedTables tables = drawn(random, drawn_integer(random, 2, 8), 100);
    PartSum sum(tables.sizes, tables.tables);
    std::vector<int> part, setting(tables.sizes.size(), 0);
    for (size_t v = 0; v < setting.size(); ++v) {
      setting[v] = drawn_integer(random, 0, tables.sizes[v] - 1);
      if (round % 2 == 0 || drawn_integer(random, 0, 1) == 0) part.push_back(static_cast<int>(v));
    }
    const LimitedTables free{tables.sizes, tables.tables, {}, {}};
    sum.plan(part, setting, round % 4 < 2 ? size_t{1} << 20 : 16, draw);
    std::vector<char> open(setting.size(), 0);
    for (int v : sum.planned()) open[static_cast<size_t>(v)] = 1;
    double least = kInfinite;
    each_setting(tables.sizes, [&](const std::vector<int>& other) {
      for (size_t v = 0; v < other.size(); ++v)
        if (!open[v] && other[v] != setting[v]) return;
      least = std::min(least, sum_within_limits(free, other));
    });
    std::vector<int> solved = setting;
    sum.solve(alone_of(tables, sum), solved);
    const double found = sum_within_limits(free, solved);
    CHECK(same(found, least));
    if (round % 4 != 0) continue;
    bool exact = true;
    const double whole = least_sum(tables.sizes, tables.tables, exact).value;
    CHECK(same(found, whole));
  }
}

TEST_CASE("the bound by messages never falls and is never above the least sum") {
  std::mt19937 random(9);
  int met = 0;
  for (int round = 0; round < 100; ++round) {
    CAPTURE(round);
    LimitedTables tables = drawn(random, drawn_integer(random, 2, 8), 100);
    for (CostTable& table : tables.tables)
      for (double& value : table.values) value = std::min(value, 1000.0);
    const PartSum sum(tables.sizes, tables.tables);
    Messages messages(tables.sizes, sum);
    std::vector<int> setting(tables.sizes.size(), 0);
    bool exact = true;
    const double least = least_sum(tables.sizes, tables.tables, exact).value;
    double before = -kInfinite;
    for (int sweep = 0; sweep < 30; ++sweep) {
      const double bound = messages.sweep(alone_of(tables, sum), setting);
      CHECK(bound >= before - 1e-6);
      CHECK(bound <= least + 1e-6);
      before = bound;
    }
    met += before > least - 1e-3;
  }
  CHECK(met > 50);
}

TEST_CASE(
    "prices of the times: with equal variables, which change all at once, the bound still rises to the best one") {
  // Each holds 10 at every time for nothing, or 1 for a cost of 100: half of them must pay. At the best prices, which
  // add up to 100 / 9, both values cost the same.
  constexpr int kCount = 400, kTimes = 300;
  LimitedTables tables;
  for (int v = 0; v < kCount; ++v) {
    tables.sizes.push_back(2);
    tables.tables.push_back({{v}, {0, 100}});
    tables.holdings.push_back({v, v % 50, kTimes - v % 70, {10, 1}});
  }
  tables.limits.assign(kTimes, kCount * 11 / 2);
  LimitedState state(tables);
  Messages messages(tables.sizes, state.sum());
  const TimePrices found = time_prices(state, messages, 0.3, [] { return true; });
  constexpr double kBest = 100.0 * (kCount * 10 - kCount * 11 / 2) / 9;
  CAPTURE(found.bound);
  CHECK(found.bound <= kBest * (1 + 1e-9));
  CHECK(found.bound > 0.995 * kBest);
  REQUIRE_FALSE(found.kept.empty());
  CHECK(found.kept_cost == sum_within_limits(tables, found.kept));
  CHECK(found.bound <= found.kept_cost);
  Messages others(tables.sizes, state.sum());
  CHECK(time_prices(state, others, 1, [] { return true; }).bound < found.bound);
}

TEST_CASE("peaks: the largest sum after intervals are added and taken away") {
  std::mt19937 random(2);
  std::vector<int64_t> sums(37);
  for (int64_t& sum : sums) sum = drawn_integer(random, -20, 20);
  Peaks peaks(sums);
  for (int round = 0; round < 1000; ++round) {
    const int first = drawn_integer(random, 0, 36), end = drawn_integer(random, first, 37), amount = drawn_integer(random, -9, 9);
    peaks.add(first, end, amount);
    for (int t = first; t < end; ++t) sums[static_cast<size_t>(t)] += amount;
    REQUIRE(peaks.most() == *std::max_element(sums.begin(), sums.end()));
  }
}

TEST_CASE("binding times: of times that hold the same or more, the one with the lowest limit stays") {
  // time      0  1  2  3  4
  // held      a  a  ab b  -
  const std::vector<HeldInterval> held = {{0, 3, 5}, {2, 4, 5}};
  CHECK(binding_times({4, 4, 4, 4, 4}, held) == std::vector<size_t>{2});
  CHECK(binding_times({3, 4, 4, 4, 4}, held) == std::vector<size_t>{0, 2});
  CHECK(binding_times({9, 9, 9, 3, 4}, held) == std::vector<size_t>{2, 3});
  CHECK(binding_times({9, 9, 10, 9, 4}, held).empty());
}
