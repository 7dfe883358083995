// Nodes that add terms, above all the gradients of a tensor that several layers read. Such a node may add terms that
// are partial sums, or that are cut as their makers left them: what is then summed over ranks, moved or sent to another
// stage is one tensor, not one for each term.
#pragma once

#include "engine/graph/graph.h"
#include "engine/plan/plan.h"
#include "engine/plan/traffic/cost_model.h"

namespace trainctl {

/// The output is the sum of the inputs, which have its shape.
bool adds_terms(const Graph& graph, const Node& node);

/// Gives such nodes the layout in which their terms, and the sum, move the least, and the earliest stage of their
/// terms; and if it `explains`, adds that to the layers' reasons. Call when everything else is placed.
void place_sums(const Graph& graph, const CostModel& cost, bool explains, Plan& plan);

}  // namespace trainctl
