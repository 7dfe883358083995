// Nodes that add terms, above all the gradients of a tensor that several layers read. Such a node may add partial sums,
// or terms in the layout in which they were computed: then only one tensor is summed over ranks, redistributed or sent
// to another stage, in place of one for each term.
#pragma once

#include "engine/graph/graph.h"
#include "engine/plan/plan.h"
#include "engine/plan/traffic/cost_model.h"

namespace trainctl {

/// True if the output is the sum of the inputs, which have the same shape.
bool adds_terms(const Graph& graph, const Node& node);

/// Assigns such nodes the layout that needs the least redistribution of terms and sum, and the earliest stage of their
/// terms; and if it `explains`, adds that to the layers' reasons. Call when everything else is placed.
void place_sums(const Graph& graph, const CostModel& cost, bool explains, Plan& plan);

}  // namespace trainctl
