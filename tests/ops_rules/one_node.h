// Makes graphs of one forward node, and prints the backward nodes.
#pragma once

#include <string>
#include <vector>

#include "engine/graph/graph.h"
#include "tests/op_cases/op_cases.h"

namespace trainctl {

/// The node of layer "op" with inputs in0, in1, …, which all need gradients (except i32).
Graph one_node(const Given& given);

/// Appends the backward nodes. Returns what each of them does, in order: "matmul mn,kn->mk sums n", where n is a factor
/// that only the inputs have, or "pass in0" for a gradient that is passed on unchanged.
std::vector<std::string> backward_of(Graph& graph);

/// The factors that the inputs have and output `i` lacks, such as "a b".
std::string contracted(const Graph& graph, const Node& node, size_t i);

}  // namespace trainctl
