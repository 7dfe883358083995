// What a search that plans one graph again and again need not find out each time.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "engine/plan/cost_model.h"
#include "engine/plan/plan.h"
#include "engine/plan/traffic.h"

namespace trainctl {

/// Of plans of one graph on one machine.
struct PlanMemo {
  /// By the mesh, the number of micro-batches and the strategies: what propagation chose, by unit.
  std::map<std::string, std::vector<FactorAxes>> axes;
};

/// Equal to make_plan without a memo.
Plan make_plan(const Graph& graph, const JobSpec& spec, const CostModel& cost, PlanMemo& memo);

}  // namespace trainctl
