// Sums over jobs of few blocks miss the memory of some plans by several per cent. A trial of all blocks therefore
// decides if a plan near the limit fits.
#pragma once

#include "engine/search/trials/plan_trials.h"

namespace trainctl {

/// Tries with all blocks the plans that may fit or not, as long as they may be faster than the best one that fits.
void try_near_limit(PlanTrials& t);

}  // namespace trainctl
