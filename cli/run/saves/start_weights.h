// The weights that a job starts from (`weights`).
#pragma once

#include "engine/planning/planned_job.h"
#include "engine/train/checkpoint/mapped_weights.h"

namespace trainctl {

/// The files of `weights`, matched with the tensors of the job, which must have that section. Reads only headers.
/// Throws SpecError, or EnvError with everything that does not fit.
MappedWeights start_weights(const PlannedJob& job);

/// Throws what start_weights throws; does nothing for a job without `weights`.
void require_start_weights(const PlannedJob& job);

}  // namespace trainctl
