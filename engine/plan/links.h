// Which tensors tie which layers together, with the dims of each in the factors of both.
#pragma once

#include <vector>

#include "engine/graph/graph.h"
#include "engine/plan/layout.h"

namespace trainctl {

/// A tensor that layer `from` makes (or, for a parameter, uses first) and layer `to` reads.
struct Link {
  TensorId tensor = -1;
  LayerId from = -1, to = -1;
  Rule from_rule;  ///< of the node that makes it; empty for a parameter
  TensorRule made, read;
  int output = 0;  ///< index of the tensor in from_rule
};

struct Links {
  std::vector<std::vector<Link>> in, out;  ///< one entry a layer, in the order of the nodes
  /// Layers whose work is the same for every element or row: what comes in cut any way that the rule
  /// permits goes out cut that way, at no cost. They have no parameters and reduce nothing.
  std::vector<bool> passes_through;
};

Links find_links(const Graph& graph);

}  // namespace trainctl
