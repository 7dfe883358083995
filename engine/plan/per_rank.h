// Statistics of each rank's own rows (engine/graph/per_rank.h).
#pragma once

#include "engine/graph/per_rank.h"
#include "engine/plan/plan.h"

namespace trainctl {

/// The number of shards that the values of a feature are cut into, of a node with the attr kPerRank.
int64_t shards_of_statistics(const Graph& graph, const Plan& plan, const Node& node);

}  // namespace trainctl
