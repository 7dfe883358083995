#include "engine/search/least_sum.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "engine/base/error.h"

namespace trainctl {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

/// The variables of all tables that have `variable`, without it.
std::vector<int> neighbours(const std::vector<CostTable>& tables, int variable) {
  std::vector<int> all;
  for (const CostTable& table : tables)
    if (std::binary_search(table.variables.begin(), table.variables.end(), variable))
      all.insert(all.end(), table.variables.begin(), table.variables.end());
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  std::erase(all, variable);
  return all;
}

size_t entries(const std::vector<int>& sizes, const std::vector<int>& variables) {
  size_t count = 1;
  for (int v : variables) {
    count *= static_cast<size_t>(sizes[v]);
    if (count > kMaxTableEntries) return kMaxTableEntries + 1;
  }
  return count;
}

/// The place in a table of a setting that steps through `order`'s variables, the last fastest.
struct Steps {
  std::vector<size_t> stride;  // by place in the order; 0: the table does not have it

  Steps(const std::vector<int>& sizes, const std::vector<int>& order, const CostTable& table)
      : stride(order.size(), 0) {
    size_t step = 1;
    for (size_t i = table.variables.size(); i-- > 0;) {
      const auto at = std::find(order.begin(), order.end(), table.variables[i]);
      if (at != order.end()) stride[static_cast<size_t>(at - order.begin())] = step;
      step *= static_cast<size_t>(sizes[table.variables[i]]);
    }
  }
};

/// What an eliminated variable should be, for each setting of its neighbours.
struct Eliminated {
  int variable = -1;
  std::vector<int> neighbours;
  std::vector<int> best;
};

class Elimination {
 public:
  Elimination(const std::vector<int>& sizes, std::vector<CostTable> tables)
      : sizes_(sizes), tables_(std::move(tables)) {}

  LeastSum run(bool& exact) {
    std::vector<int> left;
    for (int v = 0; v < static_cast<int>(sizes_.size()); ++v) left.push_back(v);
    while (!left.empty()) {
      const auto [place, entries] = next(left);
      if (entries > kMaxTableEntries) {
        exact = false;
        fix_largest(left);
        continue;
      }
      eliminate(left[place]);
      left.erase(left.begin() + static_cast<std::ptrdiff_t>(place));
    }
    LeastSum result;
    for (const CostTable& table : tables_) result.value += table.values[0];
    result.setting.assign(sizes_.size(), 0);
    for (auto step = eliminated_.rbegin(); step != eliminated_.rend(); ++step) {
      size_t at = 0;
      for (int v : step->neighbours) at = at * static_cast<size_t>(sizes_[v]) + static_cast<size_t>(result.setting[v]);
      result.setting[step->variable] = step->best[at];
    }
    for (const auto& [variable, value] : fixed_) result.setting[variable] = value;
    return result;
  }

 private:
  std::pair<size_t, size_t> next(const std::vector<int>& left) const {
    size_t best = 0, least = kMaxTableEntries + 2;
    for (size_t i = 0; i < left.size(); ++i) {
      const size_t made = entries(sizes_, neighbours(tables_, left[i])) * static_cast<size_t>(sizes_[left[i]]);
      if (made < least) {
        least = made;
        best = i;
      }
      if (least <= static_cast<size_t>(sizes_[left[i]])) break;
    }
    return {best, least};
  }

  void eliminate(int variable) {
    Eliminated step{variable, neighbours(tables_, variable), {}};
    std::vector<int> order = step.neighbours;
    order.push_back(variable);
    std::vector<const CostTable*> with;
    std::vector<CostTable> rest;
    for (const CostTable& table : tables_)
      if (std::binary_search(table.variables.begin(), table.variables.end(), variable)) with.push_back(&table);
    std::vector<Steps> steps;
    for (const CostTable* table : with) steps.emplace_back(sizes_, order, *table);
    CostTable made{step.neighbours, std::vector<double>(entries(sizes_, step.neighbours), kInfinite)};
    step.best.assign(made.values.size(), 0);
    std::vector<int> setting(order.size(), 0);
    std::vector<size_t> at(with.size(), 0);
    const int values = sizes_[variable];
    for (size_t entry = 0; entry < made.values.size(); ++entry) {
      for (int value = 0; value < values; ++value) {
        double sum = 0;
        for (size_t t = 0; t < with.size(); ++t)
          sum += with[t]->values[at[t] + static_cast<size_t>(value) * steps[t].stride.back()];
        if (sum >= made.values[entry]) continue;
        made.values[entry] = sum;
        step.best[entry] = value;
      }
      for (size_t i = step.neighbours.size(); i-- > 0;) {
        for (size_t t = 0; t < with.size(); ++t) at[t] += steps[t].stride[i];
        if (++setting[i] < sizes_[order[i]]) break;
        for (size_t t = 0; t < with.size(); ++t) at[t] -= steps[t].stride[i] * static_cast<size_t>(sizes_[order[i]]);
        setting[i] = 0;
      }
    }
    std::erase_if(tables_, [&](const CostTable& table) {
      return std::binary_search(table.variables.begin(), table.variables.end(), variable);
    });
    tables_.push_back(std::move(made));
    eliminated_.push_back(std::move(step));
  }

  void fix_largest(std::vector<int>& left) {
    const auto largest =
        std::max_element(left.begin(), left.end(), [&](int a, int b) { return sizes_[a] < sizes_[b]; });
    const int variable = *largest;
    std::vector<double> alone(static_cast<size_t>(sizes_[variable]), 0);
    for (const CostTable& table : tables_)
      if (table.variables == std::vector<int>{variable})
        for (size_t i = 0; i < alone.size(); ++i) alone[i] += table.values[i];
    const int value = static_cast<int>(std::min_element(alone.begin(), alone.end()) - alone.begin());
    fixed_.emplace_back(variable, value);
    for (CostTable& table : tables_) restrict_to(table, variable, value);
    left.erase(largest);
  }

  void restrict_to(CostTable& table, int variable, int value) const {
    const auto found = std::find(table.variables.begin(), table.variables.end(), variable);
    if (found == table.variables.end()) return;
    const size_t place = static_cast<size_t>(found - table.variables.begin());
    size_t inner = 1;
    for (size_t i = place + 1; i < table.variables.size(); ++i)
      inner *= static_cast<size_t>(sizes_[table.variables[i]]);
    const size_t size = static_cast<size_t>(sizes_[variable]);
    std::vector<double> values;
    for (size_t outer = 0; outer < table.values.size() / (inner * size); ++outer)
      for (size_t i = 0; i < inner; ++i)
        values.push_back(table.values[(outer * size + static_cast<size_t>(value)) * inner + i]);
    table.values = std::move(values);
    table.variables.erase(found);
  }

  const std::vector<int>& sizes_;
  std::vector<CostTable> tables_;
  std::vector<Eliminated> eliminated_;
  std::vector<std::pair<int, int>> fixed_;
};

}  // namespace

LeastSum least_sum(const std::vector<int>& sizes, std::vector<CostTable> tables, bool& exact) {
  for (const CostTable& table : tables) {
    size_t count = 1;
    for (int v : table.variables) count *= static_cast<size_t>(sizes[v]);
    check(count == table.values.size(), "a table has one value a setting");
  }
  return Elimination(sizes, std::move(tables)).run(exact);
}

}  // namespace trainctl
