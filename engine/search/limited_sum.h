// The least sum of tables under limits on other sums: each value of a variable costs something, alone and together with
// the values of its neighbours, and holds an amount (say of memory) over an interval of time. At no time may the
// amounts that are held add up to more than the limit.
//
//   least  sum of tables(setting)   such that at each time t   sum of holdings over t(setting) <= limits[t]
//
// No method is known that solves this exactly and soon. The search here (limited_sum.cpp) folds what can be folded
// without loss, finds prices of the times at which the limit binds (time_prices.h), and then improves one part of the
// variables after the other: a part is solved exactly, by eliminating its variables (part_sum.h), at prices that its
// memory calls for. Of four starts that are improved so, the search continues from the best.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "engine/search/least_sum.h"

namespace trainctl {

/// Amounts that a variable holds over the times first, ..., end - 1, for each of its values. Not negative.
struct Holding {
  int variable = 0;
  int first = 0;
  int end = 0;
  std::vector<int64_t> amounts;
};

/// Infinite entries of tables are allowed: settings that must not be. A table has one or two variables.
struct LimitedTables {
  std::vector<int> sizes;  ///< how many values each variable has, at least one
  std::vector<CostTable> tables;
  std::vector<Holding> holdings;
  std::vector<int64_t> limits;  ///< by time
};

struct LimitedSearch {
  uint64_t seed = 1;
  int64_t parts = 20000;  ///< how many parts are tried: the same seed and count find the same setting
  /// Asked between the parts, and between rounds of prices; false ends the search.
  std::function<bool()> go_on = [] { return true; };
};

struct LimitedSum {
  bool found = false;        ///< whether `setting` keeps the limits
  double value = 0;          ///< its sum
  std::vector<int> setting;  ///< by variable
  double bound = 0;          ///< no setting that keeps the limits has a smaller sum; infinite: there is none
};

LimitedSum limited_sum(const LimitedTables& tables, const LimitedSearch& search);

/// The sum of a setting; infinite where it breaks a limit.
double sum_within_limits(const LimitedTables& tables, const std::vector<int>& setting);

}  // namespace trainctl
