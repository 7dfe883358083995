// Plans text generation with the network of a job: `trainctl generate`. Reads no data.
#pragma once

#include <memory>

#include "engine/machine/machine.h"
#include "engine/planning/planned_job.h"

namespace trainctl {

/// The result has PlannedJob::generation; its graph is that of one token, and its plan is that of both graphs. `size`:
/// rows are rounded up until ranks can divide them. SpecErrors have positions.
PlannedJob plan_generation(JobSpec spec, GenerationSize size, std::shared_ptr<const Machine> machine);

Program compile_prefill(const PlannedJob& job, int rank);
RankClasses compile_prefill_classes(const PlannedJob& job);

}  // namespace trainctl
