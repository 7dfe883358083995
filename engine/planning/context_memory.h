// parallel.context_method: auto where memory is short.
#pragma once

#include "engine/plan/plan_memo.h"
#include "engine/planning/planned_job.h"

namespace trainctl {

/// If the plan's method, which has the lowest estimated time, needs more memory than a rank may have, plans the job
/// with the next ones, by time, and keeps the first that fits; if none does, the plan stays as it is. Adds a note. Does
/// nothing for a job that names its method, and without a limit.
void fit_context_method(PlannedJob& job, PlanMemo& memo);

}  // namespace trainctl
