// Describes which part of each variable a rank writes into checkpoints (divide_storage.cpp has a drawing).
#pragma once

#include <vector>

#include "engine/compile/lower/buckets.h"
#include "engine/compile/program.h"
#include "engine/plan/plan.h"

namespace trainctl {

class StorageDivision {
 public:
  /// `plan` must outlive it; the others are not referred to.
  StorageDivision(const Graph& graph, const Plan& plan, const std::vector<BucketPlan>& buckets);

  /// Sets own_first and own_elements of a rank's variables. plans[i], an element of the plan, is that of
  /// program.variables[i].
  void divide(const std::vector<const VariablePlan*>& plans, Program& program) const;

 private:
  enum class Way : uint8_t {
    shared,   ///< all ranks that have the range write an equal part of it
    sharded,  ///< the first of the ranks with the same shard writes it
    served,   ///< each server writes the ranges that it stores
    base      ///< no rank writes it: it is in the files of `weights`
  };
  /// A set of ranks that hold the same variables: they share the range of these variables, or each has a shard of it.
  struct Holders {
    std::vector<int> stages;  ///< empty: those of one stage
    Axes axes;
    int64_t elements = 0;  ///< sum over the variables that they share
  };
  struct Place {
    Way way = Way::shared;
    size_t holders = 0;
    int64_t begin = 0;  ///< shared: in the holders' range
  };

  size_t find_holders(const std::vector<int>& stages, const Axes& axes);
  int64_t index_of(const Holders& holders, const Program& program) const;

  const Plan& plan_;
  std::vector<Place> places_;  ///< by variable of the plan
  std::vector<Holders> holders_;
};

}  // namespace trainctl
