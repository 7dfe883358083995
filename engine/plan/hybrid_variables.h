// hybrid_parallel: how parameters and states are cut, by what strategies say of some of them.
#pragma once

#include <optional>
#include <vector>

#include "engine/base/error.h"
#include "engine/graph/graph.h"
#include "engine/plan/layout.h"
#include "engine/plan/strategies.h"

namespace trainctl {

/// One layout a tensor (not cut, but for parameters and states). What a strategy leaves out follows the
/// factors that it cuts in the layer's other parameters: a bias its weight. Two strategies that cut a
/// shared parameter differently are added to `errors`; the result then is not to be used.
std::vector<Layout> hybrid_layouts(const Graph& graph, const std::vector<std::optional<LayerStrategy>>& strategies,
                                   const JobSpec& spec, const Mesh& mesh, std::vector<Diagnostic>& errors);

}  // namespace trainctl
