// Plans a job. Reads no data: the caller has read the headers of the data sets and the machine.
#pragma once

#include <memory>
#include <optional>

#include "engine/base/error.h"
#include "engine/machine/machine.h"
#include "engine/planning/planned_job.h"

namespace trainctl {

/// All that a plan depends on besides the job file.
struct PlanInputs {
  DataHeader training;
  std::optional<DataHeader> validation;    ///< header of JobSpec::validation_set(), if the job has one
  std::shared_ptr<const Machine> machine;  ///< see machine_of (machine_file.h)
};

/// Builds the graph and plans it; searches first in auto_parallel. SpecErrors have positions.
PlannedJob plan_job(JobSpec spec, PlanInputs inputs);

/// The inputs that `job` was planned with, to plan a variant of it.
PlanInputs inputs_of(const PlannedJob& job);

/// Throws an EnvError if the job's device cannot compute in its precision.
void require_precision(const JobSpec& spec);

}  // namespace trainctl
