// Selects the optimizer that updates a parameter: the job's own, or its companion (OptimizerDef::companion).
#pragma once

#include "engine/graph/graph.h"
#include "engine/ops/optimizer_def.h"
#include "engine/plan/plan.h"

namespace trainctl {

/// True if the companion of the job's optimizer updates the parameter. `group` is Update::group.
bool uses_companion(const Graph& graph, const OptimizerSpec& spec, TensorId parameter, int group);
/// Returns the job's optimizer, or with `companion` its companion, with the settings of the parameter group.
Optimizer optimizer_of(const OptimizerSpec& spec, int group, bool companion);

}  // namespace trainctl
