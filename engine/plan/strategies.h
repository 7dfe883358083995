// parallel.strategies checked against the rules of the layers they are for: cuts per dim of each
// input become cuts per factor.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/base/error.h"
#include "engine/graph/graph.h"
#include "engine/plan/mesh.h"
#include "engine/plan/sharding_facts.h"
#include "engine/spec/job_spec.h"

namespace trainctl {

struct LayerStrategy {
  const StrategySpec* spec = nullptr;
  std::vector<int64_t> factor_ways;  ///< one a factor; 1: not cut. Empty in hybrid_parallel
};

/// One entry a layer, empty where the job says nothing of it. Adds what is wrong to `errors`.
std::vector<std::optional<LayerStrategy>> read_strategies(const Graph& graph, const std::vector<LayerFacts>& facts,
                                                          const JobSpec& spec, const Mesh& mesh,
                                                          std::vector<Diagnostic>& errors);

}  // namespace trainctl
