// The exact minimum of a sum of tables over variables with few values each: eliminates one variable after the other,
// each time the one whose elimination makes the smallest table. For a chain that is dynamic programming; for a network
// with residual connections the tables have one or two variables more.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace trainctl {

/// A term of the sum: a value for each setting of its variables, the last of which runs fastest.
struct CostTable {
  std::vector<int> variables;  ///< ascending, each once
  std::vector<double> values;
};

struct LeastSum {
  double value = 0;
  std::vector<int> setting;  ///< by variable
};

/// The most entries that a table may have.
inline constexpr size_t kMaxTableEntries = size_t{1} << 22;

/// `sizes`: how many values each variable has, at least one. Of several minima the one with the smallest values of the
/// variables that were eliminated last. Infinite values are allowed: settings that must not be.
/// Where a table would have more than kMaxTableEntries entries, `exact` becomes false and the variable with the most
/// values takes the one that is best by the tables that have it alone.
LeastSum least_sum(const std::vector<int>& sizes, std::vector<CostTable> tables, bool& exact);

/// The same for each setting of the variables that are `told`, the least sum first: all others are then as is best.
/// Until `take` returns false.
void least_sums(const std::vector<int>& sizes, std::vector<CostTable> tables, const std::vector<bool>& told,
                bool& exact, const std::function<bool(const LeastSum&)>& take);

}  // namespace trainctl
