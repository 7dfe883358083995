// Sizes of tensor and context parallelism that a search of plans considers, in which ranks share sequences.
#pragma once

#include <vector>

#include "engine/planning/planned_job.h"

namespace trainctl {

struct SharedRows {
  int tensor = 1, context = 1;
};

/// True if ranks may share the rows of sequences in a way that the job leaves open: it has attention, and fixes neither
/// sizes nor strategies.
bool may_share_rows(const JobSpec& spec);

/// For each number of ranks that may share a sample, ascending, all sizes, those with the fastest step first, by a
/// trial of a few blocks. Sizes that are not legal are left out.
std::vector<std::vector<SharedRows>> sizes_to_search(const PlannedJob& job, const JobSpec& spec);

JobSpec with_sizes(JobSpec spec, const SharedRows& sizes);

/// Tries the plan of a job with sizes that needs about the least memory: one sample of each group per micro-batch,
/// optimizer_shard 3, all blocks recomputed. Fields that the job fixes are not changed.
TriedPlan smallest_plan(const PlannedJob& job, const JobSpec& sized);

}  // namespace trainctl
