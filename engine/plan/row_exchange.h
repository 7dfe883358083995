// Nodes of attention whose ranks exchange keys and values, because they share the rows of the sequences.
#pragma once

#include "engine/plan/plan.h"

namespace trainctl {

/// The axes that cut the rows of such a node, major first; empty for all other nodes.
Axes exchange_axes(const Graph& graph, const Plan& plan, const Node& node);

/// True if its ranks share rows, or rows are stored in an order that its kernels do not know (ops/row_order.h).
bool exchanges_keys(const Graph& graph, const Plan& plan, const Node& node);

/// True if all ranks of a ring have the same amount of computation for each block: rows are balanced (or all keys are
/// seen), and each row sees its own key. Their programs then differ only in numbers and in which calls are idle.
bool has_balanced_ring(const Node& node);

/// True if some node of the graph passes keys around a ring that is not balanced.
bool has_uneven_ring(const Graph& graph, const Plan& plan);

}  // namespace trainctl
