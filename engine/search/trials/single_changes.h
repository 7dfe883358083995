// The part of the search that changes a tried plan in one respect: one choice, the cuts of one layer, the size of
// buckets.
#pragma once

#include "engine/search/trials/plan_trials.h"

namespace trainctl {

/// Tries single changes of the fastest plan, as long as one is faster.
void improve(PlanTrials& t);

/// Tries single changes of the plan that needs the least memory, until one fits or none needs less. If none fits, at
/// least as much is tried as in a search that finds a plan.
void shrink(PlanTrials& t);

/// Tries up to `most` plans that differ from a plan that is slightly too large in the cuts of one layer, if they are
/// expected to fit and to take about as long; the fastest first.
void try_smaller_cuts(PlanTrials& t, size_t from, size_t most);

/// For a job that is short of memory, whose limits may be used up: tries up to `most` other cuts of one layer of the
/// fastest plan, those first that are expected to be fastest.
void polish(PlanTrials& t, size_t most);

/// Tries other sizes of buckets for the plan that waits for them longest. The estimates ignore buckets, and few blocks
/// do not fill large ones, so the whole network is tried.
void try_bucket_sizes(PlanTrials& t);

}  // namespace trainctl
