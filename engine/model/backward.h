// The backward pass and the updates of a graph whose forward pass and loss are there.
#pragma once

#include "engine/graph/graph.h"

namespace trainctl {

/// Appends backward nodes and graph.updates. Nothing is made that no parameter needs.
void build_backward(Graph& graph);

}  // namespace trainctl
