// The sharding of statistics that each rank computes over its own rows (engine/graph/per_rank.h).
#pragma once

#include "engine/graph/per_rank.h"
#include "engine/plan/plan.h"

namespace trainctl {

/// Returns the number of shards into which the plan divides the values of a feature. `node` has the attr kPerRank.
int64_t shards_of_statistics(const Graph& graph, const Plan& plan, const Node& node);

}  // namespace trainctl
