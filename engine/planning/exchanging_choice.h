// auto_parallel: plans in which ranks exchange tokens for their experts (engine/plan/token_exchange.h).
#pragma once

#include <optional>

#include "engine/graph/graph.h"
#include "engine/search/choices/plan_choice.h"

namespace trainctl {

/// The choice with the tokens of its layers with experts cut over the ranks that share the experts too; nullopt: no
/// layer's experts are cut, or the batch is not divisible. `graph`: the graph of the job with the choice.
std::optional<PlanChoice> exchanging_choice(const Graph& graph, const PlanChoice& choice);

}  // namespace trainctl
