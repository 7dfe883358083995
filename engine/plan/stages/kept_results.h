// Recompute computes tensors again instead of keeping them from the forward to the backward pass. Their collectives
// would run again too, so results of collectives are kept if they are small compared to the memory that recompute
// saves.
#pragma once

#include "engine/graph/graph.h"
#include "engine/plan/plan.h"
#include "engine/plan/traffic/cost_model.h"

namespace trainctl {

/// True if the tensor's stage does not keep it for the backward pass: it is the output of a layer that is recomputed, a
/// view or a part of such an output, or the output of an op that runs again (OpDef::runs_again).
bool is_recomputed(const Graph& graph, const Plan& plan, TensorId tensor);

/// Fills in `plan.kept`, and if it `explains`, adds that to the layers' reasons. Call when layouts and stages are
/// final.
void choose_kept_results(const Graph& graph, const CostModel& cost, bool explains, Plan& plan);

/// Empties `plan.kept`, and changes the layers' reasons accordingly: collectives are repeated, which takes less memory.
void repeat_kept_results(Plan& plan);

}  // namespace trainctl
