// Assignments of values to discrete variables that minimize a sum of cost tables, by variable elimination (bucket
// elimination, Dechter 1999): variables are eliminated one after the other, always the one whose elimination makes the
// smallest table. On a chain this is dynamic programming; residual connections add one or two variables per table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace trainctl {

/// One term of the sum: a cost for each assignment of its variables, row-major (the last variable runs fastest).
struct CostTable {
  std::vector<int> variables;  ///< ascending, without repetition
  std::vector<double> values;  ///< infinite for a forbidden assignment
};

struct Assignment {
  double cost = 0;
  std::vector<int> values;  ///< by variable
};

/// The largest table that elimination may build, in entries.
inline constexpr size_t kMaxTableEntries = size_t{1} << 22;

/// An assignment of least cost. `sizes` holds the number of values per variable, at least 1. Ties go to the smallest
/// values of the variables that are eliminated last.
/// If a table would exceed kMaxTableEntries, `exact` becomes false, and the variable with the most values is fixed to
/// the value that is best by the tables of that variable alone.
Assignment least_cost_assignment(const std::vector<int>& sizes, std::vector<CostTable> tables, bool& exact);

/// Enumerates the assignments of the variables marked in `enumerated`, cheapest first; all other variables take their
/// best values. Ends when `take` returns false.
void least_cost_assignments(const std::vector<int>& sizes, std::vector<CostTable> tables,
                            const std::vector<bool>& enumerated, bool& exact,
                            const std::function<bool(const Assignment&)>& take);

}  // namespace trainctl
