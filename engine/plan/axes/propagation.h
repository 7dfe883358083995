// From strategies for some layers to axes per factor for all of them: coordinate descent over the units, minimizing
// the cost of kernels and redistribution.
#pragma once

#include <optional>
#include <vector>

#include "engine/graph/graph.h"
#include "engine/plan/axes/sharding_facts.h"
#include "engine/plan/axes/strategies.h"
#include "engine/plan/plan.h"
#include "engine/plan/plan_memo.h"
#include "engine/plan/traffic/cost_model.h"

namespace trainctl {

/// Fills in factor_axes, choice, reason, cut_limit_reason and advice of `plan.layers`, and `plan.separate_nodes` for
/// nodes that finish a layer in another layout. Stages must already be set. The memo has the facts; axes are taken from
/// it, if it has them, and kept there.
void propagate(const Graph& graph, const std::vector<std::optional<LayerStrategy>>& strategies, const CostModel& cost,
               PlanMemo& memo, Plan& plan);

/// "strategy [[2, 1], [2, 1]] at job.yaml:31".
std::string strategy_reason(const StrategySpec& strategy, const SourcePos& pos);

}  // namespace trainctl
