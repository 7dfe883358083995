// parallel.context_method: how the ranks that share the rows of a sequence let attention see all keys and values.
//
//   gather   all_gather of k and v before the kernel, reduce_scatter of their gradients after it
//   ring     n blocks of k and v pass from rank to rank while kernels run, followed by their gradients
//   ulysses  all_to_all: attention has all rows of some heads
#pragma once

#include <string>
#include <vector>

#include "engine/graph/graph.h"
#include "engine/plan/axes/size_strategies.h"
#include "engine/plan/traffic/cost_model.h"
#include "engine/spec/job_spec.h"

namespace trainctl {

struct ContextMethodCost {
  ContextMethod method = ContextMethod::gather;
  double seconds = 0;  ///< per micro-batch, for all layers: transfers that no kernel hides, and additional kernels
};

/// The cost of each method that the network permits. Empty if no ranks share rows, or no attention exchanges keys.
std::vector<ContextMethodCost> context_method_costs(const Graph& graph, const ParallelSpec& parallel, const Mesh& mesh,
                                                    const CostModel& cost);

/// The job's method, or the one with the lowest cost.
ContextMethod choose_context_method(const ParallelSpec& parallel, const std::vector<ContextMethodCost>& costs);

/// "ring of 4 ranks (estimated: gather 1.20 ms, ring 0.30 ms per micro-batch); rows are balanced"; empty without costs.
std::string context_method_note(const Graph& graph, const ParallelSpec& parallel, ContextMethod chosen,
                                const std::vector<ContextMethodCost>& costs);

}  // namespace trainctl
