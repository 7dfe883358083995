// Running statistics that ranks compute from their own rows: after each step their mean replaces them.
#pragma once

#include <vector>

#include "engine/plan/plan.h"

namespace trainctl {

/// By tensor of the training graph: the axes over which a state's values differ between ranks, and are averaged; empty:
/// they do not. Not for hybrid_parallel, whose plan has no such axes.
std::vector<Axes> axes_of_averaged_states(const Graph& trained, const Plan& plan);

}  // namespace trainctl
