// hybrid_parallel: how parameters and states are cut, given strategies for some of them.
#pragma once

#include <optional>
#include <vector>

#include "engine/base/error.h"
#include "engine/graph/graph.h"
#include "engine/plan/axes/strategies.h"
#include "engine/plan/layout.h"

namespace trainctl {

/// One layout per tensor (only parameters and states are cut). Parameters without a strategy follow the factors
/// that the strategy cuts in the layer's other parameters: a bias follows its weight. Two strategies that cut a
/// shared parameter differently are added to `errors`; the result must then not be used.
std::vector<Layout> hybrid_layouts(const Graph& graph, const std::vector<std::optional<LayerStrategy>>& strategies,
                                   const JobSpec& spec, const Mesh& mesh, std::vector<Diagnostic>& errors);

}  // namespace trainctl
