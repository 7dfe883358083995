// Whether recompute keeps results of collectives, such as gathered keys and values, or repeats the collectives.
#pragma once

#include "engine/planning/planned_job.h"

namespace trainctl {

/// Empties Plan::kept if the job does not fit into parallel.max_memory with what it keeps, and needs less memory
/// without. Adds a note.
void repeat_collectives_to_fit(PlannedJob& job);

}  // namespace trainctl
