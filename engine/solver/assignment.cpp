// Minimizes a sum of cost tables over discrete variables, by variable elimination (bucket elimination, Dechter 1999).
#include "engine/solver/assignment.h"

#include <algorithm>
#include <limits>
#include <queue>
#include <utility>

#include "engine/base/error.h"

namespace trainctl {
namespace {

constexpr double kForbidden = std::numeric_limits<double>::infinity();

/// Returns the neighbours of `variable`: all other variables of the tables that contain it.
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

/// A table transposed such that one of its variables runs fastest.
struct TransposedTable {
  std::vector<double> values;
  std::vector<size_t> stride;  // by index in `others`; 0 if the table does not contain that variable

  TransposedTable(const std::vector<int>& sizes, const CostTable& table, int variable, const std::vector<int>& others)
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

  /// Returns the number of `others` up to and including the last one that the table contains.
  size_t neighbours_until() const {
    const auto last = std::find_if(stride.rbegin(), stride.rend(), [](size_t step) { return step > 0; });
    return static_cast<size_t>(stride.rend() - last);
  }
};

/// Computes, for each assignment of a variable's neighbours, the summed costs of each value of the variable. The
/// neighbours step through all their assignments; the last neighbour changes fastest. Partial sums are kept per
/// neighbour: a table is added at the last neighbour that it contains, so a step that changes only the last neighbour
/// adds few tables.
class SteppedCosts {
 public:
  SteppedCosts(const std::vector<int>& sizes, int variable, const std::vector<int>& neighbours,
               const std::vector<CostTable>& tables)
      : joining_(neighbours.size() + 1),
        having_(neighbours.size()),
        at_(tables.size(), 0),
        values_(neighbours.size(), 0),
        sums_(neighbours.size() + 1, std::vector<double>(static_cast<size_t>(sizes[variable]), 0)) {
    for (int v : neighbours) sizes_.push_back(sizes[v]);
    for (const CostTable& table : tables) {
      const size_t t = tables_.size();
      const TransposedTable& added = tables_.emplace_back(sizes, table, variable, neighbours);
      joining_[added.neighbours_until()].push_back(t);
      for (size_t i = 0; i < neighbours.size(); ++i)
        if (added.stride[i] > 0) having_[i].push_back(t);
    }
    add_from(0);
  }

  /// The current sums, one per value of the variable.
  const std::vector<double>& now() const { return sums_.back(); }

  void step() {
    for (size_t i = values_.size(); i-- > 0;) {
      const bool is_last = ++values_[i] == sizes_[i];
      if (is_last) values_[i] = 0;
      for (size_t t : having_[i]) {
        const size_t stride = tables_[t].stride[i];
        at_[t] += is_last ? stride - stride * static_cast<size_t>(sizes_[i]) : stride;
      }
      if (!is_last) return add_from(i + 1);
    }
  }

 private:
  /// Adds the tables whose last neighbor is at `depth` or after it.
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

  std::vector<int> sizes_;  // numbers of values of the neighbours
  std::vector<TransposedTable> tables_;
  std::vector<std::vector<size_t>> joining_;  // tables by number of neighbours that must be assigned
  std::vector<std::vector<size_t>> having_;   // tables by neighbor
  std::vector<size_t> at_;                    // by table: index of its current entry
  std::vector<int> values_;
  std::vector<std::vector<double>> sums_;  // by number of assigned neighbours
};

/// An eliminated variable: its best value per assignment of its neighbours, and the tables that were summed.
struct Eliminated {
  int variable = -1;
  std::vector<int> neighbours;
  std::vector<int> best;
  std::vector<CostTable> tables;
};

/// A node of the enumeration: an assignment of the variables that were eliminated last.
struct PartialAssignment {
  double excess = 0;         // cost above the optimum
  double parent_excess = 0;  // without the value of its last variable
  size_t depth = 0;          // number of assigned variables
  size_t rank = 0;           // index of the last variable's value in order of cost
  size_t number = 0;         // breaks ties: first come, first served
  std::vector<int> values;
  friend bool operator<(const PartialAssignment& a, const PartialAssignment& b) {
    return std::pair(a.excess, a.number) > std::pair(b.excess, b.number);
  }
};

class Elimination {
 public:
  Elimination(const std::vector<int>& sizes, std::vector<CostTable> tables)
      : sizes_(sizes), tables_(std::move(tables)) {}

  /// Eliminates the `enumerated` variables last.
  void run(const std::vector<bool>& enumerated, bool& exact) {
    for (const bool is_enumerated : {false, true}) {
      std::vector<int> left;
      for (int v = 0; v < static_cast<int>(sizes_.size()); ++v)
        if (enumerated[static_cast<size_t>(v)] == is_enumerated) left.push_back(v);
      eliminate_all(left, exact);
      if (!is_enumerated) minimized_ = eliminated_.size();
    }
    for (const CostTable& table : tables_) optimum_ += table.values[0];
  }

  Assignment best() const { return completed(fixed_values(), 0); }

  /// Calls take() with the assignments in the order of increasing cost, as a best-first search over the enumerated
  /// variables (in the order opposite to their elimination). `excess`: cost above the best completion.
  void in_order(const std::function<bool(const Assignment&)>& take) const {
    const size_t num_enumerated = eliminated_.size() - minimized_;
    std::priority_queue<PartialAssignment> open;
    size_t number = 0;
    // Assigns the next variable its value of this rank.
    const auto push = [&](double excess, size_t depth, size_t rank, std::vector<int> values) {
      const Eliminated& step = eliminated_[eliminated_.size() - 1 - depth];
      std::vector<std::pair<double, int>> costs = costs_of(step, values);
      std::sort(costs.begin(), costs.end());
      if (rank == costs.size() || costs[rank].first == kForbidden) return;
      values[static_cast<size_t>(step.variable)] = costs[rank].second;
      open.push({excess + (costs[rank].first - costs[0].first), excess, depth + 1, rank, number++, std::move(values)});
    };
    if (num_enumerated == 0) {
      take(best());
      return;
    }
    push(0, 0, 0, fixed_values());
    while (!open.empty()) {
      const PartialAssignment from = open.top();
      open.pop();
      push(from.parent_excess, from.depth - 1, from.rank + 1, from.values);
      if (from.depth < num_enumerated) {
        push(from.excess, from.depth, 0, from.values);
        continue;
      }
      Assignment assignment = completed(from.values, num_enumerated);
      assignment.cost += from.excess;
      if (!take(assignment)) return;
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

  /// Returns an assignment in which variables fixed by fix_largest have their values, and all others are 0.
  std::vector<int> fixed_values() const {
    std::vector<int> values(sizes_.size(), 0);
    for (const auto& [variable, value] : fixed_) values[static_cast<size_t>(variable)] = value;
    return values;
  }

  /// Completes an assignment of the variables of the last `depth` eliminations at least cost.
  Assignment completed(std::vector<int> values, size_t depth) const {
    for (size_t s = eliminated_.size() - depth; s-- > 0;) {
      const Eliminated& step = eliminated_[s];
      size_t at = 0;
      for (int v : step.neighbours) at = at * static_cast<size_t>(sizes_[v]) + static_cast<size_t>(values[v]);
      values[step.variable] = step.best[at];
    }
    return {optimum_, std::move(values)};
  }

  /// Returns the cost of each value of the eliminated variable, if its neighbours have the given values.
  std::vector<std::pair<double, int>> costs_of(const Eliminated& step, const std::vector<int>& values) const {
    std::vector<std::pair<double, int>> costs;
    for (int value = 0; value < sizes_[step.variable]; ++value) costs.emplace_back(0, value);
    for (const CostTable& table : step.tables) {
      size_t at = 0, stride = 1, of_place = 1;
      for (size_t i = table.variables.size(); i-- > 0;) {
        const int v = table.variables[i];
        if (v == step.variable)
          stride = of_place;
        else
          at += of_place * static_cast<size_t>(values[v]);
        of_place *= static_cast<size_t>(sizes_[v]);
      }
      for (size_t value = 0; value < costs.size(); ++value) costs[value].first += table.values[at + value * stride];
    }
    return costs;
  }

  /// Finds the variable whose elimination makes the smallest table. Returns its index in `left` and the number of
  /// entries of that table.
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

  /// Eliminates a variable: replaces all tables that contain it by one table over its neighbours, which has the cost of
  /// the variable's best value for each assignment of the neighbours.
  void eliminate(int variable) {
    Eliminated step{variable, neighbours(tables_, variable), {}, {}};
    const auto first = std::stable_partition(tables_.begin(), tables_.end(), [&](const CostTable& table) {
      return !std::binary_search(table.variables.begin(), table.variables.end(), variable);
    });
    step.tables.assign(std::make_move_iterator(first), std::make_move_iterator(tables_.end()));
    tables_.erase(first, tables_.end());
    CostTable made{step.neighbours, std::vector<double>(entries(sizes_, step.neighbours), kForbidden)};
    step.best.assign(made.values.size(), 0);
    SteppedCosts costs(sizes_, variable, step.neighbours, step.tables);
    for (size_t entry = 0; entry < made.values.size(); ++entry, costs.step()) {
      const std::vector<double>& of_values = costs.now();
      const auto least = std::min_element(of_values.begin(), of_values.end());  // the first of equal ones
      if (*least == kForbidden) continue;
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

  /// Fixes a variable of the table to a value, which removes this variable from the table.
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
  size_t minimized_ = 0;  // number of eliminated_ that are not enumerated
  double optimum_ = 0;
};

Elimination eliminated(const std::vector<int>& sizes, std::vector<CostTable> tables,
                       const std::vector<bool>& enumerated, bool& exact) {
  for (const CostTable& table : tables) {
    size_t count = 1;
    for (int v : table.variables) count *= static_cast<size_t>(sizes[v]);
    check(count == table.values.size(), "a table has one value per assignment");
  }
  Elimination all(sizes, std::move(tables));
  all.run(enumerated, exact);
  return all;
}

}  // namespace

Assignment least_cost_assignment(const std::vector<int>& sizes, std::vector<CostTable> tables, bool& exact) {
  return eliminated(sizes, std::move(tables), std::vector<bool>(sizes.size(), false), exact).best();
}

void least_cost_assignments(const std::vector<int>& sizes, std::vector<CostTable> tables,
                            const std::vector<bool>& enumerated, bool& exact,
                            const std::function<bool(const Assignment&)>& take) {
  eliminated(sizes, std::move(tables), enumerated, exact).in_order(take);
}

}  // namespace trainctl
