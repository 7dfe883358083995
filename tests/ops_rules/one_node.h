// One forward node in its own graph, and its backward nodes, printed.
#pragma once

#include <string>
#include <vector>

#include "engine/graph/graph.h"
#include "tests/op_cases/op_cases.h"

namespace trainctl {

/// The node of layer "op" with inputs in0, in1, …, which all need gradients (except i32).
Graph one_node(const Given& given);

/// Appends its backward nodes. Returns what each does, in order: "matmul mn,kn->mk sums n" (the factors that only
/// inputs have), and "pass in0" for a gradient that is passed on.
std::vector<std::string> backward_of(Graph& graph);

/// The factors that inputs have and output `i` lacks: "a b".
std::string contracted(const Graph& graph, const Node& node, size_t i);

}  // namespace trainctl
