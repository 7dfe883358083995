#include "engine/search/least_sum.h"

#include <algorithm>
#include <limits>
#include <queue>
#include <utility>

#include "engine/base/error.h"

namespace trainctl {
namespace {

constexpr double kNoSum = std::numeric_limits<double>::infinity();

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

/// A table whose values for one of its variables lie beside each other.
struct Beside {
  std::vector<double> values;
  std::vector<size_t> stride;  // by place in `others`; 0: the table does not have it

  Beside(const std::vector<int>& sizes, const CostTable& table, int variable, const std::vector<int>& others)
      : stride(others.size(), 0) {
    const auto place = std::find(table.variables.begin(), table.variables.end(), variable);
    size_t inner = 1;
    for (auto v = place + 1; v != table.variables.end(); ++v) inner *= static_cast<size_t>(sizes[*v]);
    const size_t own = static_cast<size_t>(sizes[variable]);
    values.reserve(table.values.size());
    for (size_t outer = 0; outer < table.values.size(); outer += inner * own)
      for (size_t i = 0; i < inner; ++i)
        for (size_t value = 0; value < own; ++value) values.push_back(table.values[outer + value * inner + i]);
    size_t step = own;
    for (size_t i = table.variables.size(); i-- > 0;) {
      const auto at = std::find(others.begin(), others.end(), table.variables[i]);
      if (at == others.end()) continue;
      stride[static_cast<size_t>(at - others.begin())] = step;
      step *= static_cast<size_t>(sizes[table.variables[i]]);
    }
  }

  /// How many of `others` come before or are the last that the table has.
  size_t neighbours_until() const {
    const auto last = std::find_if(stride.rbegin(), stride.rend(), [](size_t step) { return step > 0; });
    return static_cast<size_t>(stride.rend() - last);
  }
};

/// For each value of a variable the sum of the tables that have it, while its neighbours step through all settings, the
/// last fastest. A table joins in at the last neighbour that it has, so few are added in most steps.
class SteppedSums {
 public:
  SteppedSums(const std::vector<int>& sizes, int variable, const std::vector<int>& neighbours,
              const std::vector<CostTable>& tables)
      : joining_(neighbours.size() + 1),
        having_(neighbours.size()),
        at_(tables.size(), 0),
        setting_(neighbours.size(), 0),
        sums_(neighbours.size() + 1, std::vector<double>(static_cast<size_t>(sizes[variable]), 0)) {
    for (int v : neighbours) sizes_.push_back(sizes[v]);
    for (const CostTable& table : tables) {
      const size_t t = tables_.size();
      const Beside& added = tables_.emplace_back(sizes, table, variable, neighbours);
      joining_[added.neighbours_until()].push_back(t);
      for (size_t i = 0; i < neighbours.size(); ++i)
        if (added.stride[i] > 0) having_[i].push_back(t);
    }
    add_from(0);
  }

  /// By value.
  const std::vector<double>& now() const { return sums_.back(); }

  void step() {
    for (size_t i = setting_.size(); i-- > 0;) {
      const bool is_last = ++setting_[i] == sizes_[i];
      if (is_last) setting_[i] = 0;
      for (size_t t : having_[i]) {
        const size_t stride = tables_[t].stride[i];
        at_[t] += is_last ? stride - stride * static_cast<size_t>(sizes_[i]) : stride;
      }
      if (!is_last) return add_from(i + 1);
    }
  }

 private:
  /// The tables that have no neighbour beyond the first `depth`, and those that join in after them.
  void add_from(size_t depth) {
    for (; depth < sums_.size(); ++depth) {
      std::vector<double>& to = sums_[depth];
      if (depth > 0) to = sums_[depth - 1];
      for (size_t t : joining_[depth]) {
        const double* from = &tables_[t].values[at_[t]];
        for (size_t value = 0; value < to.size(); ++value) to[value] += from[value];
      }
    }
  }

  std::vector<int> sizes_;  // of the neighbours
  std::vector<Beside> tables_;
  std::vector<std::vector<size_t>> joining_;  // tables by how many neighbours must be set
  std::vector<std::vector<size_t>> having_;   // tables by neighbour
  std::vector<size_t> at_;                    // by table
  std::vector<int> setting_;
  std::vector<std::vector<double>> sums_;  // by how many neighbours are set
};

/// Best value of an eliminated variable for each setting of its neighbours, and the tables that it follows from.
struct Eliminated {
  int variable = -1;
  std::vector<int> neighbours;
  std::vector<int> best;
  std::vector<CostTable> tables;
};

/// A setting of the variables that were eliminated last, and how much more than the least sum it costs.
struct Begun {
  double more = 0;
  double before = 0;  // without the last variable's value
  size_t steps = 0;
  size_t place = 0;   // of the last variable's value, by what it costs
  size_t number = 0;  // of several that cost the same the first
  std::vector<int> setting;
  friend bool operator<(const Begun& a, const Begun& b) {
    return std::pair(a.more, a.number) > std::pair(b.more, b.number);
  }
};

class Elimination {
 public:
  Elimination(const std::vector<int>& sizes, std::vector<CostTable> tables)
      : sizes_(sizes), tables_(std::move(tables)) {}

  /// The variables that are `told` last.
  void run(const std::vector<bool>& told, bool& exact) {
    for (const bool is_told : {false, true}) {
      std::vector<int> left;
      for (int v = 0; v < static_cast<int>(sizes_.size()); ++v)
        if (told[static_cast<size_t>(v)] == is_told) left.push_back(v);
      eliminate_all(left, exact);
      if (!is_told) untold_ = eliminated_.size();
    }
    for (const CostTable& table : tables_) least_ += table.values[0];
  }

  LeastSum best() const { return with_rest(beginning(), 0); }

  void in_order(const std::function<bool(const LeastSum&)>& take) const {
    const size_t told = eliminated_.size() - untold_;
    std::priority_queue<Begun> begun;
    size_t number = 0;
    // With the value of the next variable that is at this place.
    const auto push = [&](double before, size_t steps, size_t place, std::vector<int> setting) {
      const Eliminated& step = eliminated_[eliminated_.size() - 1 - steps];
      std::vector<std::pair<double, int>> sums = sums_of(step, setting);
      std::sort(sums.begin(), sums.end());
      if (place == sums.size() || sums[place].first == kNoSum) return;
      setting[static_cast<size_t>(step.variable)] = sums[place].second;
      begun.push(
          {before + (sums[place].first - sums[0].first), before, steps + 1, place, number++, std::move(setting)});
    };
    if (told == 0) {
      take(best());
      return;
    }
    push(0, 0, 0, beginning());
    while (!begun.empty()) {
      const Begun from = begun.top();
      begun.pop();
      push(from.before, from.steps - 1, from.place + 1, from.setting);
      if (from.steps < told) {
        push(from.more, from.steps, 0, from.setting);
        continue;
      }
      LeastSum sum = with_rest(from.setting, told);
      sum.value += from.more;
      if (!take(sum)) return;
    }
  }

 private:
  void eliminate_all(std::vector<int>& left, bool& exact) {
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
  }

  std::vector<int> beginning() const {
    std::vector<int> setting(sizes_.size(), 0);
    for (const auto& [variable, value] : fixed_) setting[static_cast<size_t>(variable)] = value;
    return setting;
  }

  /// Completes a setting of the variables of the last `steps` eliminations.
  LeastSum with_rest(std::vector<int> setting, size_t steps) const {
    for (size_t s = eliminated_.size() - steps; s-- > 0;) {
      const Eliminated& step = eliminated_[s];
      size_t at = 0;
      for (int v : step.neighbours) at = at * static_cast<size_t>(sizes_[v]) + static_cast<size_t>(setting[v]);
      setting[step.variable] = step.best[at];
    }
    return {least_, std::move(setting)};
  }

  /// With each value of the step's variable.
  std::vector<std::pair<double, int>> sums_of(const Eliminated& step, const std::vector<int>& setting) const {
    std::vector<std::pair<double, int>> sums;
    for (int value = 0; value < sizes_[step.variable]; ++value) sums.emplace_back(0, value);
    for (const CostTable& table : step.tables) {
      size_t at = 0, stride = 1, of_place = 1;
      for (size_t i = table.variables.size(); i-- > 0;) {
        const int v = table.variables[i];
        if (v == step.variable)
          stride = of_place;
        else
          at += of_place * static_cast<size_t>(setting[v]);
        of_place *= static_cast<size_t>(sizes_[v]);
      }
      for (size_t value = 0; value < sums.size(); ++value) sums[value].first += table.values[at + value * stride];
    }
    return sums;
  }

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
    Eliminated step{variable, neighbours(tables_, variable), {}, {}};
    const auto first = std::stable_partition(tables_.begin(), tables_.end(), [&](const CostTable& table) {
      return !std::binary_search(table.variables.begin(), table.variables.end(), variable);
    });
    step.tables.assign(std::make_move_iterator(first), std::make_move_iterator(tables_.end()));
    tables_.erase(first, tables_.end());
    CostTable made{step.neighbours, std::vector<double>(entries(sizes_, step.neighbours), kNoSum)};
    step.best.assign(made.values.size(), 0);
    SteppedSums sums(sizes_, variable, step.neighbours, step.tables);
    for (size_t entry = 0; entry < made.values.size(); ++entry, sums.step()) {
      const std::vector<double>& of_values = sums.now();
      const auto least = std::min_element(of_values.begin(), of_values.end());  // the first of equal ones
      if (*least == kNoSum) continue;
      made.values[entry] = *least;
      step.best[entry] = static_cast<int>(least - of_values.begin());
    }
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
  size_t untold_ = 0;  // of eliminated_
  double least_ = 0;
};

Elimination eliminated(const std::vector<int>& sizes, std::vector<CostTable> tables, const std::vector<bool>& told,
                       bool& exact) {
  for (const CostTable& table : tables) {
    size_t count = 1;
    for (int v : table.variables) count *= static_cast<size_t>(sizes[v]);
    check(count == table.values.size(), "a table has one value a setting");
  }
  Elimination all(sizes, std::move(tables));
  all.run(told, exact);
  return all;
}

}  // namespace

LeastSum least_sum(const std::vector<int>& sizes, std::vector<CostTable> tables, bool& exact) {
  return eliminated(sizes, std::move(tables), std::vector<bool>(sizes.size(), false), exact).best();
}

void least_sums(const std::vector<int>& sizes, std::vector<CostTable> tables, const std::vector<bool>& told,
                bool& exact, const std::function<bool(const LeastSum&)>& take) {
  eliminated(sizes, std::move(tables), told, exact).in_order(take);
}

}  // namespace trainctl
