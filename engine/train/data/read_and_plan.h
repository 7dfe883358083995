// Plans a job from its files: the headers of its data sets and the description of its machine.
#pragma once

#include "engine/planning/plan_job.h"

namespace trainctl {

/// plan_job (engine/planning) with inputs from files. SpecErrors have positions.
PlannedJob plan_job(JobSpec spec);
/// plan_generation (engine/planning), which reads no data set.
PlannedJob plan_generation(JobSpec spec, const GenerationSize& size);

}  // namespace trainctl
