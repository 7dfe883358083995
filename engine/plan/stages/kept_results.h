// Recompute makes tensors again instead of keeping them from the forward to the backward pass. What is made again is
// also moved again, so results of collectives are kept where they are small next to what recompute saves.
#pragma once

#include "engine/graph/graph.h"
#include "engine/plan/plan.h"
#include "engine/plan/traffic/cost_model.h"

namespace trainctl {

/// Made by a recompute layer, a view of what one makes, or made by an op that runs again (OpDef::runs_again): its stage
/// does not keep it for the backward pass.
bool is_recomputed(const Graph& graph, const Plan& plan, TensorId tensor);

/// Fills in `plan.kept`, and if it `explains`, adds that to the layers' reasons. Call when layouts and stages are
/// final.
void choose_kept_results(const Graph& graph, const CostModel& cost, bool explains, Plan& plan);

/// Empties `plan.kept`, and changes the layers' reasons accordingly: collectives are repeated, which takes less memory.
void repeat_kept_results(Plan& plan);

}  // namespace trainctl
