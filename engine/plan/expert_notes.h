// Notes of a plan about its mixtures of experts: how many experts a rank has, and how many rows they receive.
#pragma once

#include "engine/graph/graph.h"
#include "engine/plan/plan.h"

namespace trainctl {

/// One note for all layers whose experts are distributed in the same way.
void note_experts(const Graph& graph, Plan& plan);

}  // namespace trainctl
