// The graph of an evaluation, derived from the training graph: only the forward pass, with fixed weights. batch_norm
// reads its running statistics, and dropout passes its input on (OpDef::in_evaluation).
//
// It has the tensors of the training graph, under the same ids, so that the training's plan is its plan too. What it
// does not compute has no node.
//
// A row whose label is none counts neither in the loss nor in the metrics. So a batch may be filled up.
#pragma once

#include <limits>
#include <vector>

#include "engine/graph/graph.h"

namespace trainctl {

/// The label of padding rows for a loss whose labels are classes and that has no ignore_index. Of other losses it is
/// nan.
inline constexpr int64_t kNoLabel = std::numeric_limits<int32_t>::min();

/// The loss and the metrics. The graph must have a loss. `printed`: also an activation, which is printed
/// (Graph::prints); -1: none.
Graph evaluation_graph(const Graph& trained, TensorId printed = -1);

/// One tensor, an activation, which is printed (Graph::prints): no loss, and only what the tensor needs.
Graph prediction_graph(const Graph& trained, TensorId wanted);

/// The nodes that the wanted tensors need, as an evaluation runs them. `wanted` is replaced by the tensors that are
/// computed in their place.
Graph forward_part(const Graph& trained, std::vector<TensorId>& wanted);

/// The i32 that marks a row of labels as not there.
int32_t no_label(const Graph& evaluation);

/// A layer of the evaluation that computes over the rows of the batch, so that the result of a sample depends on the
/// others of its batch; -1: there is none.
LayerId mixes_rows(const Graph& evaluation);
/// A layer other than the loss's that reads the label; -1: there is none.
LayerId reads_label(const Graph& evaluation);

}  // namespace trainctl
