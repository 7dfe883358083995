// The virtual stage of each layer (stages * chunks of them): as given by parallel.stage_config, or balanced.
#pragma once

#include <vector>

#include "engine/base/error.h"
#include "engine/graph/graph.h"
#include "engine/plan/axes/sharding_facts.h"
#include "engine/plan/traffic/cost_model.h"
#include "engine/spec/job_spec.h"

namespace trainctl {

/// One virtual stage per layer. `stage_speeds`: relative speeds of the ranks of each stage; empty: all are equal.
/// Errors are added to `errors`; the result must then not be used.
std::vector<int> assign_stages(const Graph& graph, const std::vector<LayerFacts>& facts, const JobSpec& spec,
                               const CostModel& cost, const std::vector<double>& stage_speeds,
                               std::vector<Diagnostic>& errors);

/// The contiguous partition of `costs` into `num_stages` non-empty stages that minimizes the largest sum, divided by the
/// speed of its stage; of equal ones, the one whose boundaries come last. Empty `speeds`: all are 1. Returns the stage
/// of each item.
std::vector<int> balanced_partition(const std::vector<double>& costs, int num_stages,
                                    const std::vector<double>& speeds = {});

/// For each layer the layers whose outputs it reads, except itself, ascending.
std::vector<std::vector<LayerId>> layer_producers(const Graph& graph);

/// Seconds per micro-batch of each node's work, on one rank with nothing cut.
std::vector<double> node_seconds(const Graph& graph, const CostModel& cost);

}  // namespace trainctl
