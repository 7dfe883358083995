// The part of the search that changes a tried plan in one respect: one choice, the cuts of one layer, the size of
// buckets.
#pragma once

#include "engine/search/trials/plan_trials.h"

namespace trainctl {

/// Tries single changes of the fastest plan, as long as one is faster.
void improve(PlanTrials& t);

/// For a search whose limits may be used up: tries single changes of the fastest plan, each with every way to
/// recompute, as long as one is faster. A plan that recomputes in some blocks has no other neighbors.
void improve_further(PlanTrials& t);

/// Tries single changes of the plan that needs the least memory, until one fits or none needs less. If none fits, at
/// least as much is tried as in a search that finds a plan.
void shrink(PlanTrials& t);

/// For a search whose limits may be used up: tries a few other cuts of the fastest plans that fit, those first that are
/// expected to be fastest, because the fastest of two plans may be the other one after such a change.
void polish(PlanTrials& t);

/// Tries other sizes of buckets for the plan that waits for them longest. The estimates ignore buckets, and few blocks
/// do not fill large ones, so the whole network is tried.
void try_bucket_sizes(PlanTrials& t);

}  // namespace trainctl
