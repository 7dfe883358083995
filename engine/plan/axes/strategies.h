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
  /// The factor of the experts, if the experts share axes with the tokens, so that tokens are exchanged (all_to_all);
  /// else
  /// -1.
  int exchanged_experts = -1;
  std::vector<int> token_factors = {};  ///< with exchanged_experts: the factors of tokens; experts take their last axes

  /// Returns for each factor the number of shards that come from axes of its own. The experts share axes with the
  /// tokens, so with an exchange of tokens they have none.
  std::vector<int64_t> own_ways() const;
  /// Returns the axes `given`, which were assigned for own_ways(), completed by the axes of the experts.
  std::vector<Axes> with_exchange(const Mesh& mesh, std::vector<Axes> given) const;
};

/// One entry per layer, empty if the job gives no strategy for it. Errors are added to `errors`.
std::vector<std::optional<LayerStrategy>> read_strategies(const Graph& graph, const std::vector<LayerFacts>& facts,
                                                          const JobSpec& spec, const Mesh& mesh,
                                                          std::vector<Diagnostic>& errors);

}  // namespace trainctl
