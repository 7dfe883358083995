// Warnings about a job that runs, but is probably not meant so: printed by check, plan and run, never an error.
#pragma once

#include <vector>

#include "engine/base/error.h"
#include "engine/spec/job_spec.h"

namespace trainctl {

/// Returns the warnings in file order; each has a position.
std::vector<Diagnostic> warnings(const JobSpec& job);

}  // namespace trainctl
