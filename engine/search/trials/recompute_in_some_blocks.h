// The part of the search that tries plans which recompute in some of the blocks.
#pragma once

#include "engine/search/trials/plan_trials.h"

namespace trainctl {

/// Does nothing unless memory is short: a plan that fits if all blocks recompute may fit if only some do, and is
/// faster.
void try_some_blocks(PlanTrials& t);

}  // namespace trainctl
