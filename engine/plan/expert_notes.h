// Notes of a plan about its mixtures of experts: how many experts a rank has, and how many rows they receive.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/graph/graph.h"
#include "engine/plan/plan.h"

namespace trainctl {

struct ExpertShare {
  int64_t per_rank = 0, all = 0;  ///< experts of a rank, and of the layer
  friend bool operator==(const ExpertShare&, const ExpertShare&) = default;
};
/// Returns the shares of all layers with experts, each once, in order; empty without such layers, and in
/// hybrid_parallel.
std::vector<ExpertShare> expert_shares(const Graph& graph, const Plan& plan);

/// One note for all layers whose experts are distributed in the same way.
void note_experts(const Graph& graph, const CostModel& cost, Plan& plan);

}  // namespace trainctl
