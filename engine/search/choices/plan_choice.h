// The decisions that the planner may make, as one value. A job fixes any part of it and leaves the rest open; a job
// with all of it fixed is an ordinary semi_auto_parallel job.
#pragma once

#include <string>
#include <vector>

#include "engine/spec/job_spec.h"

namespace trainctl {

/// parallel.optimizer_shard, without min_kb.
struct ShardChoice {
  int level = 0;
  bool within_host = false;
  friend bool operator==(const ShardChoice&, const ShardChoice&) = default;
};

struct PlanChoice {
  int stages = 1, chunks = 1;
  Schedule schedule = Schedule::one_f_one_b;
  int micro_batches = 1;
  ShardChoice optimizer_shard;
  int64_t bucket_bytes = 0;              ///< 0: kBucketBytes
  std::vector<StageRule> stage_config;   ///< empty: balanced
  std::vector<StrategySpec> strategies;  ///< cuts of each layer that has any
  std::vector<RecomputeRule> recompute;
};

/// The job with everything fixed as chosen: mode semi_auto_parallel.
JobSpec with_choice(JobSpec job, const PlanChoice& choice);

/// "2 stages, 1f1b, 8 micro-batches, optimizer_shard 1, recompute h.*"; without the cuts.
std::string to_string(const PlanChoice& choice);

}  // namespace trainctl
