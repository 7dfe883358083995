// One forward node in a graph of its own, and its backward nodes, printed.
#pragma once

#include <string>
#include <vector>

#include "engine/graph/graph.h"
#include "tests/op_cases/op_cases.h"

namespace trainctl {

/// The node of layer "op" with inputs in0, in1, … that all need gradients (but for i32).
Graph one_node(const Given& given);

/// Appends its backward nodes. What each does, in order:
/// "matmul mn,kn->mk sums n" (the factors that only inputs have), and "pass in0" for a gradient that
/// is handed on.
std::vector<std::string> backward_of(Graph& graph);

/// "a b" of the factors that inputs have and output `i` lacks.
std::string contracted(const Graph& graph, const Node& node, size_t i);

}  // namespace trainctl
