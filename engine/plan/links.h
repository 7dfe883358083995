// Which tensors connect which layers, with their dims in the factors of both.
#pragma once

#include <vector>

#include "engine/graph/graph.h"
#include "engine/plan/layout.h"

namespace trainctl {

/// A tensor that layer `from` makes (for a parameter: uses first) and layer `to` reads.
struct Link {
  TensorId tensor = -1;
  LayerId from = -1, to = -1;
  Rule from_rule;  ///< of the node that makes the tensor; empty for a parameter
  TensorRule made, read;
  int output = 0;  ///< index of the tensor in from_rule
};

struct Links {
  std::vector<std::vector<Link>> in, out;  ///< one entry per layer, in the order of the nodes
  /// Layers that compute every element or row independently: an input cut in any way that the rule allows gives an
  /// output cut the same way, at no cost unless an inner factor is cut. They have no parameters and reduce nothing.
  std::vector<bool> passes_through;
};

Links find_links(const Graph& graph);

}  // namespace trainctl
