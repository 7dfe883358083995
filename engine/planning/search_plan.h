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
    std::function<FoundPlan(const JobSpec&, const DataShapes&, const CostModel&, const PlanLimits&, const TryPlan&)>;

/// Searches for the best plan in the mode auto_parallel; does nothing in other modes. Sets job.spec to the job with all
/// fields fixed, and job.search to the result of the search. Returns what trials have found out about the graph of this
/// job. Throws NoPlanFits with the least memory that a plan would need. Any other error of the job is thrown at once.
Trials::KnownGraph search_plan(PlannedJob& job, const FindPlan& find = find_plan);

}  // namespace trainctl
