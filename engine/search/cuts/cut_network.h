// Facts of a graph that a search for cuts needs, for any mesh.
#pragma once

#include <string>
#include <vector>

#include "engine/graph/graph.h"
#include "engine/plan/axes/sharding_facts.h"
#include "engine/plan/axes/units.h"
#include "engine/search/cuts/repeats.h"

namespace trainctl {

struct CutNetwork {
  const Graph& graph;
  const std::vector<LayerFacts>& facts;
  const Units& units;
  const Folded& folded;  ///< has the job of the graph

  CutNetwork(const Graph& graph, const std::vector<LayerFacts>& facts, const Units& units, const Folded& folded);

  std::vector<int> run;               ///< by layer: its run of equal blocks; -1: in none
  std::vector<int> block;             ///< by layer
  std::vector<double> times;          ///< by layer: the number of layers of the whole network that it represents
  std::vector<std::string> patterns;  ///< by layer; equal layers have equal patterns
  std::vector<LayerId> owners;  ///< by layer: the layer that added it (AddedLayer, adapters); else the layer itself
  /// The number of tensors of the whole network that a tensor between these units represents.
  double times_of(const std::vector<int>& units_between) const;
  /// Returns for each layer of the whole network the layer that represents it; -1: it has no nodes.
  std::vector<LayerId> layers_of_whole(const JobSpec& whole, const Repeats& repeats) const;
};

}  // namespace trainctl
