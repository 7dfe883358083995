// The tensors that connect units, with their dims in terms of the factors of both.
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
  /// By unit: true if it computes every element or row independently. If an input is cut in a way that the rule
  /// permits, the output is cut in the same way, at no cost unless an inner factor is cut. They reduce nothing, and
  /// compute no gradients of parameters.
  std::vector<bool> passes_through;
  /// By unit: true if it only passes on the outputs of one other unit, and these are never partial sums.
  std::vector<bool> only_follows;
};

Links find_links(const Graph& graph, const Units& units);

}  // namespace trainctl
