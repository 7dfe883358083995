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

  /// A plan that was tried, by the size of its largest bucket.
  struct OtherBuckets {
    int64_t given = 0;         ///< parallel.bucket_bytes
    int64_t bucket_bytes = 0;  ///< Plan::bucket_bytes
    Trial trial;
  };
  /// Facts of a graph that was tried, for its next plan.
  struct KnownGraph {
    std::optional<Graph> graph;
    PlanMemo memo;
    std::map<std::string, std::vector<OtherBuckets>> others;  ///< plans that were tried, by all settings but that size
  };
  /// The graph of a job that was tried; null: it was not, or its graph was taken.
  const Graph* graph_of(const JobSpec& spec) const;
  /// Hands over the facts of the graph of `spec`. A later trial of such a job builds its graph again.
  KnownGraph take(const JobSpec& spec);

 private:
  Trial simulated(PlannedJob& fixed, TriedRanks ranks) const;

  const PlannedJob& job_;
  std::map<std::string, KnownGraph> graphs_;
};

}  // namespace trainctl
