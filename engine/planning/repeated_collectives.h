// Decides whether recompute keeps the results of collectives, such as gathered keys and values, or runs the collectives
// again in the backward pass.
#pragma once

#include "engine/planning/planned_job.h"

namespace trainctl {

/// Empties Plan::kept (so that collectives run again) if the job exceeds parallel.max_memory and needs less memory
/// that way. Adds a note to the plan.
void repeat_collectives_to_fit(PlannedJob& job);

}  // namespace trainctl
