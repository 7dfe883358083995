// Running statistics that ranks compute from their own rows: after each step their mean replaces them.
#pragma once

#include <vector>

#include "engine/plan/plan.h"

namespace trainctl {

/// Returns for each tensor of the training graph the axes over which the values of a state differ between ranks, and
/// are therefore averaged; empty: all ranks have equal values. Not for hybrid_parallel, whose plan has no such axes.
std::vector<Axes> axes_of_averaged_states(const Graph& trained, const Plan& plan);

}  // namespace trainctl
