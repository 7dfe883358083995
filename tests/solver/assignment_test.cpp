// Compares the solver with the enumeration of all assignments.
#include "engine/solver/assignment.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <random>

using namespace trainctl;

namespace {

int pick(std::mt19937& random, int least, int most) {
  return least + static_cast<int>(random() % static_cast<unsigned>(most - least + 1));
}

/// Random cost tables over some of the variables.
std::vector<CostTable> random_tables(std::mt19937& random, const std::vector<int>& sizes) {
  std::vector<CostTable> tables;
  for (int t = pick(random, 1, 8); t > 0; --t) {
    CostTable table;
    size_t entries = 1;
    for (int v = 0; v < static_cast<int>(sizes.size()); ++v) {
      if (pick(random, 0, 2) != 0) continue;
      table.variables.push_back(v);
      entries *= static_cast<size_t>(sizes[static_cast<size_t>(v)]);
    }
    for (size_t e = 0; e < entries; ++e) table.values.push_back(static_cast<double>(random() % 1000));
    tables.push_back(std::move(table));
  }
  return tables;
}

double cost_of(const std::vector<CostTable>& tables, const std::vector<int>& sizes, const std::vector<int>& values) {
  double cost = 0;
  for (const CostTable& table : tables) {
    size_t at = 0;
    for (int v : table.variables)
      at =
          at * static_cast<size_t>(sizes[static_cast<size_t>(v)]) + static_cast<size_t>(values[static_cast<size_t>(v)]);
    cost += table.values[at];
  }
  return cost;
}

/// Calls `visit` with every assignment of values to the variables.
template <class Visit>
void for_each_assignment(const std::vector<int>& sizes, Visit visit) {
  std::vector<int> values(sizes.size(), 0);
  for (;;) {
    visit(values);
    size_t v = 0;
    while (v < sizes.size() && ++values[v] == sizes[v]) values[v++] = 0;
    if (v == sizes.size()) return;
  }
}

}  // namespace

TEST_CASE("least_cost_assignment: no assignment of random tables costs less") {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    std::vector<int> sizes(static_cast<size_t>(pick(random, 1, 6)));
    for (int& size : sizes) size = pick(random, 1, 4);
    const std::vector<CostTable> tables = random_tables(random, sizes);
    double least = 1e300;
    for_each_assignment(
        sizes, [&](const std::vector<int>& values) { least = std::min(least, cost_of(tables, sizes, values)); });
    bool exact = true;
    const Assignment result = least_cost_assignment(sizes, tables, exact);
    CHECK(exact);
    CHECK(result.cost == least);
    CHECK(cost_of(tables, sizes, result.values) == least);
  }
}

TEST_CASE(
    "least_cost_assignments: each assignment of the enumerated variables comes once, cheapest first, completed at "
    "least cost") {
  std::mt19937 random(9);
  for (int round = 0; round < 200; ++round) {
    std::vector<int> sizes(static_cast<size_t>(pick(random, 1, 6)));
    for (int& size : sizes) size = pick(random, 1, 4);
    const std::vector<CostTable> tables = random_tables(random, sizes);
    std::vector<bool> enumerated;
    for (size_t v = 0; v < sizes.size(); ++v) enumerated.push_back(pick(random, 0, 1) == 1);
    const auto key = [&](std::vector<int> values) {
      for (size_t v = 0; v < values.size(); ++v)
        if (!enumerated[v]) values[v] = -1;
      return values;
    };
    std::map<std::vector<int>, double> least;
    for_each_assignment(sizes, [&](const std::vector<int>& values) {
      const double cost = cost_of(tables, sizes, values);
      const auto place = least.try_emplace(key(values), cost).first;
      place->second = std::min(place->second, cost);
    });
    double before = 0;
    bool exact = true;
    least_cost_assignments(sizes, tables, enumerated, exact, [&](const Assignment& found) {
      CHECK(found.cost >= before);
      CHECK(cost_of(tables, sizes, found.values) == found.cost);
      const auto place = least.find(key(found.values));
      REQUIRE(place != least.end());
      CHECK(place->second == found.cost);
      least.erase(place);
      before = found.cost;
      return true;
    });
    CHECK(exact);
    CHECK(least.empty());
  }
}
