// Makes a problem of limited_sum.h smaller without loss: what is left has a best setting from which a best setting of
// the whole follows.
//
//   values that no setting may have are removed          (no finite partner, or too much memory even beside the least)
//   values that cost and hold at least as much as another, whatever the neighbours have, are removed
//   a variable that follows from a neighbour joins it    (each value of the neighbour leaves one)
//   a variable that holds nothing, of few neighbours, is eliminated by the min-plus product of its tables
//   times at which the limit cannot bind, or binds only where another time's does, are dropped
#pragma once

#include <vector>

#include "engine/search/limited_sum.h"

namespace trainctl {

struct FoldedTables {
  bool possible = true;  ///< false: no setting keeps the limits and has a finite sum
  double constant = 0;   ///< part of the sum that is not in `left`
  LimitedTables left;    ///< tables of one variable (one each, first), then of two
  /// In the order in which they left: a variable and how it follows from what was left then.
  struct Step {
    int variable = -1;                    // of the whole problem
    std::vector<int> from;                // none, one or two variables of the whole problem, ...
    std::vector<std::vector<int>> names;  // ... their values at that time: place -> value of the whole problem
    std::vector<int> value;               // for each setting of these places, the value of the whole problem
  };
  std::vector<Step> steps;
  std::vector<int> variables;           ///< index in `left` -> index in the whole problem
  std::vector<std::vector<int>> names;  ///< by variable of `left`: value -> value of the whole problem

  /// The setting of the whole problem.
  std::vector<int> unfold(const std::vector<int>& setting) const;
};

FoldedTables fold(const LimitedTables& tables);

}  // namespace trainctl
