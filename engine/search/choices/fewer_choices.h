// Jobs that fix a field which another job leaves open. Under a memory limit a search tries only some of the plans that
// may be the best; a search with fewer choices tries more of the rest.
#pragma once

#include <vector>

#include "engine/search/choices/plan_choice.h"
#include "engine/spec/job_spec.h"

namespace trainctl {

/// Returns variants of the job: with one stage, with each level of optimizer_shard that saves memory, and with both. A
/// field that the user gives is not changed. Variants that save more memory come first. Applied to one of these
/// variants, the function returns a subset of the same variants. So a search that includes all of them finds every plan
/// that it would find if the user fixed one of these fields. Returns nothing with effort: low, or with an algorithm
/// other than the default.
std::vector<JobSpec> with_fewer_choices(const JobSpec& job);

/// True if `variant` is the variant with the fewest choices that includes this choice. A variant that leaves the stages
/// open has the choices with several stages, and one that leaves the level open has those with level 0.
bool belongs_to(const PlanChoice& choice, const JobSpec& variant);

}  // namespace trainctl
