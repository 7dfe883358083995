// Follows the rows of the batch through the nodes of a graph, from their rules alone.
#pragma once

#include "engine/graph/graph.h"

namespace trainctl {

/// Sets Tensor::batch of the node's outputs from its inputs', and Layer::mixed_rows of its layer if the node computes
/// over the rows of the batch. Throws ShapeError if the node reads a parameter or state whose shape depends on the
/// batch: it would have other weights with other micro-batches.
void trace_batch(Graph& graph, const Node& node);

}  // namespace trainctl
