// Selects the optimizer that updates a parameter: the job's own, or its companion (OptimizerDef::companion).
#pragma once

#include "engine/graph/graph.h"
#include "engine/ops/optimizer_def.h"
#include "engine/plan/plan.h"

namespace trainctl {

/// `group`: Update::group.
bool uses_companion(const Graph& graph, const OptimizerSpec& spec, TensorId parameter, int group);
/// The optimizer with the settings of the group.
Optimizer optimizer_of(const OptimizerSpec& spec, int group, bool companion);

}  // namespace trainctl
