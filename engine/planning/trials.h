// Plans, compiles and simulates variants of a job for the search: other plans, fewer blocks and other batches.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/plan/plan_memo.h"
#include "engine/planning/planned_job.h"

namespace trainctl {

class Trials {
 public:
  /// `job` must outlive it; only its data and cost are used.
  explicit Trials(const PlannedJob& job) : job_(job) {}

  Trial run(JobSpec spec, TriedRanks ranks);

  /// A plan with another size of the largest bucket.
  struct OtherBuckets {
    int64_t bucket_bytes = 0;
    Trial trial;
  };
  /// Facts of a graph that was tried, for its next plan.
  struct KnownGraph {
    std::optional<Graph> graph;
    PlanMemo memo;
    std::map<std::string, std::vector<OtherBuckets>> others;  ///< plans that were tried, by all settings but that size
  };
  /// Hands over the facts of the graph of `spec`.
  KnownGraph take(const JobSpec& spec);

 private:
  Trial simulated(PlannedJob& fixed, TriedRanks ranks) const;

  const PlannedJob& job_;
  std::map<std::string, KnownGraph> graphs_;
};

}  // namespace trainctl
