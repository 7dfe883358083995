// What a large job takes, from jobs of few blocks and few micro-batches: both add the same again and again.
#pragma once

#include <vector>

#include "engine/search/find_plan.h"
#include "engine/search/repeats.h"

namespace trainctl {

/// Each with everything fixed, as the whole job. What they take, times these weights, adds up to what the whole takes.
struct SmallJobs {
  std::vector<JobSpec> jobs;
  std::vector<double> weights;
  int64_t work = 0;  ///< layers times micro-batches of all of them

  bool is_whole() const { return jobs.size() == 1; }
};

/// `whole`: a job with all choices made. Blocks are left out only of one stage, since stages divide them unevenly; micro-batches
/// of any schedule, once the pipeline is full.
SmallJobs small_jobs(const JobSpec& whole, const Repeats& repeats);

/// Of all of them, tried one by one. The first fault is that of the sum.
Trial sum_of(const SmallJobs& small, const TryPlan& try_plan);

/// Layers times micro-batches, which is about what a plan takes to compile and simulate.
int64_t work_of(const JobSpec& job);

}  // namespace trainctl
