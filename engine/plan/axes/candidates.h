// The assignments of axes to factors that are considered for a layer.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/graph/graph.h"
#include "engine/plan/axes/sharding_facts.h"
#include "engine/plan/layout.h"
#include "engine/plan/traffic/traffic.h"

namespace trainctl {

/// The axes per factor that give a tensor of the layer the layout `layout`, or as much of it as the layer's rule and
/// sizes permit.
struct Following {
  FactorAxes axes;
  bool whole = true;  ///< the tensor gets exactly this layout
};
Following follow(const Mesh& mesh, const Layer& layer, const LayerFacts& facts, const TensorRule& rule,
                 const Layout& layout);

/// The batch is cut by all axes, or by as many of them as divide it.
FactorAxes data_parallel_axes(const Mesh& mesh, const Layer& layer, const LayerFacts& facts);
/// "data parallel: 32 rows cut 4 ways", or why there is nothing to cut.
std::string data_parallel_reason(const Mesh& mesh, const Layer& layer, const LayerFacts& facts);

/// `axes` without those of factors that no output of the layer has.
FactorAxes without_contractions(const Layer& layer, FactorAxes axes);

/// `axes` without those of factors that a node of the layer sums over inside (Rule::inner).
FactorAxes without_inner_sums(const std::vector<int>& inner, FactorAxes axes);

/// All assignments (at most `limit`) that give each factor axes whose sizes multiply to its ways, in lexicographic
/// order.
std::vector<FactorAxes> assignments(const Mesh& mesh, const std::vector<int64_t>& factor_ways, size_t limit);

/// One such assignment that prefers for each factor the axes of `wish`, in their order. Empty if there is none.
std::vector<FactorAxes> nearest_assignment(const Mesh& mesh, const std::vector<int64_t>& factor_ways,
                                           const FactorAxes& wish);

}  // namespace trainctl
