// Plans text generation with the network of a job: `trainctl generate`. Reads no data.
#pragma once

#include <memory>

#include "engine/machine/machine.h"
#include "engine/planning/planned_job.h"

namespace trainctl {

/// Returns a job with PlannedJob::generation. PlannedJob::graph computes one token of each text; the plan covers it and
/// the graph that reads prompts. The number of rows in `size` is rounded up to one that the ranks can divide.
/// SpecErrors have positions.
PlannedJob plan_generation(JobSpec spec, GenerationSize size, std::shared_ptr<const Machine> machine);

Program compile_prefill(const PlannedJob& job, int rank);
RankClasses compile_prefill_classes(const PlannedJob& job);

}  // namespace trainctl
