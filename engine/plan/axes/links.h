// Which tensors connect which units, with their dims in the factors of both.
#pragma once

#include <vector>

#include "engine/graph/graph.h"
#include "engine/plan/axes/units.h"

namespace trainctl {

/// A tensor that unit `from` makes (for a parameter: uses first) and unit `to` reads.
struct Link {
  TensorId tensor = -1;
  int from = -1, to = -1;
  Rule from_rule;  ///< rule of the node that makes the tensor; empty for a parameter
  TensorRule made, read;
  int output = 0;  ///< index of the tensor in from_rule
};

struct Links {
  std::vector<std::vector<Link>> in, out;  ///< one entry per unit, in the order of the nodes
  /// Units that compute every element or row independently: an input cut in any way that the rule allows gives an
  /// output cut the same way, at no cost unless an inner factor is cut. They reduce nothing, and make no gradients of
  /// parameters.
  std::vector<bool> passes_through;
  /// Units that pass through what a single other unit makes, never as a partial sum.
  std::vector<bool> only_follows;
};

Links find_links(const Graph& graph, const Units& units);

}  // namespace trainctl
