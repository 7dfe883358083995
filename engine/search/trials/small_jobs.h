// Estimates the costs of a large job from jobs of few blocks and few micro-batches: both add the same again and again.
#pragma once

#include <map>
#include <vector>

#include "engine/search/find_plan.h"
#include "engine/search/networks.h"

namespace trainctl {

/// Sums up the trials of a job's plans, each from jobs of a few sizes. Refers to what it is given.
class SmallJobs {
 public:
  SmallJobs(const JobSpec& job, Networks& networks, const CostModel& cost);

  /// True if plans of one stage are tried on fewer blocks.
  bool leaves_out_blocks() const { return is_large(1) && !folded_runs().empty(); }

  struct Size {
    const JobSpec* job = nullptr;  ///< job with fewer blocks
    int micro_batches = 1;
    double weight = 1;
  };
  /// The trials of jobs of these sizes, times their weights, add up to the trial of the whole.
  struct Sizes {
    std::vector<Size> all;
    int64_t work =
        0;  ///< layers times micro-batches of all of them, which is about what they take to compile and simulate

    bool is_whole() const { return all.size() == 1; }
  };
  /// Each stage leaves out the same number of blocks; micro-batches are left out once the pipeline is full. Valid as
  /// long as this object is.
  Sizes sizes_of(const PlanChoice& choice);
  /// The same with all blocks: only micro-batches are left out.
  Sizes sizes_of_all_blocks(const PlanChoice& choice) const;

  /// Sum of the trials of all sizes, tried one by one. The first fault is that of the sum.
  Trial sum_of(const PlanChoice& choice, const Sizes& sizes, const TryPlan& try_plan) const;

 private:
  /// A job with its weight in the sum.
  struct Folding {
    JobSpec job;
    double weight = 1;
  };
  bool is_large(int micro_batches) const;
  void add(const JobSpec& job, double weight, const PlanChoice& choice, Sizes& sizes) const;
  std::vector<Folding> folded_runs() const;
  std::vector<Folding> folded_stages(const PlanChoice& choice) const;

  const JobSpec& whole_;
  Networks& networks_;
  const CostModel& cost_;
  std::map<int, std::vector<Folding>> foldings_;  ///< by virtual stages; empty: blocks are not left out
};

}  // namespace trainctl
