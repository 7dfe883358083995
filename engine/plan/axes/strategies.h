// Checks parallel.strategies against the rules of the layers they apply to: cuts per dim of each input become cuts
// per factor.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/base/error.h"
#include "engine/graph/graph.h"
#include "engine/plan/axes/sharding_facts.h"
#include "engine/plan/mesh.h"
#include "engine/spec/job_spec.h"

namespace trainctl {

struct LayerStrategy {
  const StrategySpec* spec = nullptr;  ///< null: it follows from parallel.data, tensor and context
  std::vector<int64_t> factor_ways;    ///< one per factor; 1: not cut. Empty in hybrid_parallel
  std::vector<Axes> axes = {};         ///< one per factor; empty: the planner chooses the axes
  /// If the experts share axes with the tokens, which are then exchanged (all_to_all): their factor; else -1.
  int exchanged_experts = -1;
  std::vector<int> token_factors = {};  ///< then: the factors of tokens, whose last axes the experts take

  /// The ways to cut each factor by axes of its own.
  std::vector<int64_t> own_ways() const;
  /// `given`, axes of own_ways(), and those of the experts.
  std::vector<Axes> with_exchange(const Mesh& mesh, std::vector<Axes> given) const;
};

/// One entry per layer, empty if the job gives no strategy for it. Errors are added to `errors`.
std::vector<std::optional<LayerStrategy>> read_strategies(const Graph& graph, const std::vector<LayerFacts>& facts,
                                                          const JobSpec& spec, const Mesh& mesh,
                                                          std::vector<Diagnostic>& errors);

}  // namespace trainctl
