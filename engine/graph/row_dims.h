// The rows of sequences in the tensors of a graph: tokens [batch, rows], or vectors [batch, rows, features].
#pragma once

#include <vector>

#include "engine/graph/graph.h"

namespace trainctl {

/// Returns for each tensor the dim whose major factor is the rows of the sequences; -1: none, as for all tensors of the
/// backward pass. Returns an empty list if the data are not sequences.
std::vector<int> row_dims(const Graph& graph);

/// True if no op of the forward pass divides the rows into parts or moves them, so that the results do not depend on
/// their order except through ops that know it.
bool rows_may_be_reordered(const Graph& graph);

}  // namespace trainctl
