// The memory that a rank on a GPU allocates besides its arena.
#pragma once

#include "engine/planning/planned_job.h"

namespace trainctl {

/// The training program with all of its Memory. Unchanged for CPU ranks.
Program with_device_memory(const PlannedJob& job, Program program);

/// The same for the program of the validation, which runs one batch at a time and keeps no data on the device.
Program with_evaluation_memory(const PlannedJob& job, Program program);

}  // namespace trainctl
