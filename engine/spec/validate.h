// What must hold between fields, and needs no shapes.
#pragma once

#include "engine/spec/job_spec.h"
#include "engine/spec/problems.h"

namespace trainctl {

/// Adds a problem for each rule that the job breaks, unless a field of the rule is known to be wrong.
void validate(const JobSpec& job, Problems& problems);

}  // namespace trainctl
