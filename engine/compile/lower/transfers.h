// Tensors that cross from one virtual stage to another. The list and its order are the same on every rank, so both
// ends of a channel agree on what comes next. Between two chunks of one stage a tensor stays where it is.
#pragma once

#include <vector>

#include "engine/plan/plan.h"

namespace trainctl {

struct Transfer {
  TensorId tensor = -1;
  int from = 0, to = 0;  ///< virtual stages; each rank sends to the rank at the same place in the other stage
  Phase phase = Phase::forward;
  Layout layout;  ///< the layout in which it is sent
};

/// In the order of the nodes that make the tensors. A tensor that several nodes of a virtual stage need is sent there
/// once.
std::vector<Transfer> plan_transfers(const Graph& graph, const Plan& plan, const CostModel& cost);

}  // namespace trainctl
