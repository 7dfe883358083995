// The units for which the planner chooses axes: a layer, or the nodes of a layer that finish the result of its
// contraction, such as the bias of a dense layer. If the contraction is cut, these nodes need the whole sum; they can
// then compute in the layout in which the output is read, after a reduce_scatter.
#pragma once

#include <vector>

#include "engine/graph/graph.h"

namespace trainctl {

struct Unit {
  LayerId layer = -1;
  std::vector<NodeId>
      finishing;  ///< the forward nodes that finish the layer; empty: this unit is all other nodes of the layer

  bool finishes() const { return !finishing.empty(); }
};

struct Units {
  std::vector<Unit> all;             ///< in the order of the nodes: a layer, then the unit that finishes it
  std::vector<int> of_layer;         ///< the unit of the nodes of the layer that do not finish it, forward and backward
  std::vector<int> finish_of_layer;  ///< -1: the layer has none
  std::vector<int> of_node;
};

Units find_units(const Graph& graph);

}  // namespace trainctl
