// Plans the graph of a job in which every choice is fixed.
#pragma once

#include "engine/plan/plan_memo.h"
#include "engine/planning/planned_job.h"

namespace trainctl {

/// Fills in PlannedJob::plan from spec, graph, cost and tables. Throws SpecError.
void plan_graph(PlannedJob& job, PlanMemo& memo);

}  // namespace trainctl
