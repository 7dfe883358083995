// Jobs that fix a field which another job leaves open. Under a memory limit a search tries only some of the plans that
// may be the best; a search with fewer choices tries more of the rest.
#pragma once

#include <vector>

#include "engine/search/choices/plan_choice.h"
#include "engine/spec/job_spec.h"

namespace trainctl {

/// The job with one stage, with each level of optimizer_shard that saves memory, and with both, as far as it leaves
/// these fields open; those first that save more memory. For each of these jobs the function returns others of them, so
/// a search that includes all of them finds whatever a job finds in which the user fixes one of these fields. None with
/// effort: low, or another algorithm than the default.
std::vector<JobSpec> with_fewer_choices(const JobSpec& job);

/// True if the choice is one of those of a job with fewer choices.
bool has_choices_of(const JobSpec& job, const PlanChoice& choice);

}  // namespace trainctl
