// Follows the rows of the batch through the nodes of a graph, using only their rules.
#pragma once

#include "engine/graph/graph.h"

namespace trainctl {

/// Attr of a node whose sums over rows only reach the state of a step, to which all micro-batches add: they do not
/// depend on the number of micro-batches.
inline constexpr const char* kAddsUp = "adds_up";

/// Sets Tensor::batch of the node's outputs from its inputs', and Layer::mixed_rows of its layer if the node computes
/// over the rows of the batch. Throws ShapeError if the node reads a parameter or state whose shape depends on the
/// batch: it would have other weights with other micro-batches.
void trace_batch(Graph& graph, const Node& node);

}  // namespace trainctl
