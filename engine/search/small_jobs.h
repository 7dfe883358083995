// What a large job takes, from jobs of few blocks and few micro-batches: both add the same again and again.
#pragma once

#include <vector>

#include "engine/search/find_plan.h"
#include "engine/search/repeats.h"

namespace trainctl {

/// What the plans of a job take, each from jobs of a few sizes.
class SmallJobs {
 public:
  SmallJobs(const JobSpec& job, const Repeats& repeats);

  struct Size {
    const JobSpec* job = nullptr;  ///< of fewer blocks
    int micro_batches = 1;
    double weight = 1;
  };
  /// What jobs of these sizes take, times their weights, adds up to what the whole takes.
  struct Sizes {
    std::vector<Size> all;
    int64_t work =
        0;  ///< layers times micro-batches of all of them, which is about what they take to compile and simulate

    bool is_whole() const { return all.size() == 1; }
  };
  /// Blocks are left out only of one stage, since stages divide them unevenly; micro-batches of any schedule, once the
  /// pipeline is full. Valid as long as this is.
  Sizes sizes_of(const PlanChoice& choice) const;

  /// Of all of them, tried one by one. The first fault is that of the sum.
  Trial sum_of(const PlanChoice& choice, const Sizes& sizes, const TryPlan& try_plan) const;

 private:
  const JobSpec& whole_;
  std::vector<JobSpec> folded_;  ///< few blocks of each run, then more of one run each; empty: there is no need
  std::vector<double> weights_;
};

}  // namespace trainctl
