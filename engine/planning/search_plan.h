// Searches for the fastest plan of a job (parallel.mode: auto_parallel) by several searches with find_plan. If samples
// are fewer than ranks, or memory is short, ranks may share the rows of sequences (parallel.tensor, context); if
// nothing fits, GPUs offload to the memory of their host.
#pragma once

#include <functional>

#include "engine/planning/planned_job.h"
#include "engine/planning/trials.h"

namespace trainctl {

/// find_plan, or a substitute for it in tests.
using FindPlan =
    std::function<FoundPlan(const JobSpec&, const DataShapes&, const CostModel&, int64_t memory, const TryPlan&)>;

/// Fixes what auto_parallel leaves open: sets job.spec and job.search. Returns what is known of the graph then; nothing
/// in other modes. Throws NoPlanFits with the least memory that a plan would need, and any other error of the job at
/// once.
Trials::KnownGraph search_plan(PlannedJob& job, const FindPlan& find = find_plan);

}  // namespace trainctl
