// Estimates the costs of a large job from jobs with few blocks and few micro-batches: each further block or micro-batch
// adds the same amount.
#pragma once

#include <map>
#include <vector>

#include "engine/search/find_plan.h"
#include "engine/search/networks.h"

namespace trainctl {

/// Estimates the trial of a plan as a weighted sum of trials of smaller jobs. Refers to its arguments.
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
  /// The trials of jobs of these sizes, multiplied by their weights, add up to the trial of the whole job.
  struct Sizes {
    std::vector<Size> all;
    int64_t work = 0;  ///< layers times micro-batches of all of them: roughly the work of compiling and simulating them

    bool is_whole() const { return all.size() == 1; }
  };
  /// The small jobs have fewer blocks, the same number less in each stage, and no more micro-batches than fill the
  /// pipeline. The result is valid as long as this object.
  Sizes sizes_of(const PlanChoice& choice);
  /// The same with all blocks: only micro-batches are left out.
  Sizes sizes_of_all_blocks(const PlanChoice& choice) const;

  /// Tries the jobs of all sizes and returns the weighted sum; its fault is the first one.
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
