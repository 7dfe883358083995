// Which pipeline stage each layer is in: as parallel.stage_config says, or balanced.
#pragma once

#include <vector>

#include "engine/base/error.h"
#include "engine/graph/graph.h"
#include "engine/plan/cost_model.h"
#include "engine/plan/sharding_facts.h"
#include "engine/spec/job_spec.h"

namespace trainctl {

/// One stage a layer. What is wrong is added to `errors`; the result then is not to be used.
std::vector<int> assign_stages(const Graph& graph, const std::vector<LayerFacts>& facts, const JobSpec& spec,
                               const CostModel& cost, std::vector<Diagnostic>& errors);

/// The contiguous partition of `costs` into `parts` non-empty ranges with the smallest largest sum;
/// of those, the one whose boundaries come last. Returns the part of each item.
std::vector<int> balanced_partition(const std::vector<double>& costs, int parts);

/// For each layer the layers whose outputs it reads, without itself, ascending.
std::vector<std::vector<LayerId>> layer_producers(const Graph& graph);

/// Seconds of one micro-batch's work of each node, on one rank with nothing cut.
std::vector<double> node_seconds(const Graph& graph, const CostModel& cost);

}  // namespace trainctl
