// Checks rules between fields of a job that can be checked without the shapes of tensors.
#pragma once

#include "engine/spec/job_spec.h"
#include "engine/spec/problems.h"

namespace trainctl {

/// Adds a problem for each rule that the job breaks, unless a field of the rule already has an error.
void validate(const JobSpec& job, Problems& problems);

}  // namespace trainctl
