// The backward pass and the updates, for a graph whose forward pass and loss exist.
#pragma once

#include "engine/graph/graph.h"

namespace trainctl {

/// Appends backward nodes and graph.updates; only those that some parameter needs.
void build_backward(Graph& graph);

}  // namespace trainctl
