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
  std::vector<double> times;          ///< by layer: for how many layers of the whole network it stands
  std::vector<std::string> patterns;  ///< by layer: those of equal layers are equal
  std::vector<LayerId> owners;  ///< by layer: the layer that added it (AddedLayer, adapters); else the layer itself
  /// For how many tensors of the whole network one between these units stands.
  double times_of(const std::vector<int>& units_between) const;
  /// By layer of the whole network: the layer that stands for it; -1: it has no nodes.
  std::vector<LayerId> layers_of_whole(const JobSpec& whole, const Repeats& repeats) const;
};

}  // namespace trainctl
