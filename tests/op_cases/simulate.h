// Builds the graph of a row and runs it on simulated ranks. The factors of the layer are cut, each rank runs the kernel
// of each node on its slices, and the results of the ranks are assembled again.
#pragma once

#include <vector>

#include "engine/graph/graph.h"
#include "tests/op_cases/case_device.h"
#include "tests/op_cases/op_case.h"

namespace trainctl {

/// The graph of a row's layer; with `backward`, followed by the nodes that differentiate the layer's last node.
struct CaseGraph {
  Graph graph;
  std::vector<TensorId> inputs;
  NodeId last = -1;                ///< the last forward node
  TensorId out_grad = -1;          ///< the gradient of its first output: an input of the graph
  std::vector<TensorId> in_grads;  ///< one per input of the row; -1: not differentiable
};
/// Builds the graph. `floats` is f32, or bf16 or f16 in place of the row's f32; labels keep their type.
CaseGraph build_case(const OpCase& op_case, bool backward, DType floats = DType::f32);

/// The values of whole tensors by id, including those of i32. Empty: not computed yet.
using Values = std::vector<std::vector<double>>;
/// Values of the row's inputs, states and output gradient, rounded to the tensors' types.
Values initial_values(const OpCase& op_case, const CaseGraph& built);

/// The number of parts into which each factor of the layer is cut. The number of ranks is their product.
using Cuts = std::vector<int>;
Cuts uncut(const Graph& graph);
/// Every legal way to cut one factor 2, 3 or 4 ways, or two factors 2 ways each.
std::vector<Cuts> permitted_cuts(const Graph& graph);
std::string to_string(const Cuts& cuts, const Graph& graph);

struct RunOptions {
  bool in_place = false;    ///< output 0 in the memory of input 0, if the op allows it
  bool accumulate = false;  ///< onto kBefore, if the op allows it
  int threads = 1;
  const CaseDevice* device = &cpu_device();
};
inline constexpr float kBefore = 0.75f;

/// Returns whether RunOptions::in_place changes how any node runs.
bool can_work_in_place(const Graph& graph);
/// Returns whether RunOptions::accumulate changes how the node runs.
bool can_accumulate(const Node& node);

/// Runs all nodes in order. Memory that a kernel does not write is left as NaN.
void run_graph(const Graph& graph, const Cuts& cuts, Values& values, const RunOptions& options = {});

/// Runs the forward nodes with the reference in double.
void run_reference(const Graph& graph, NodeId last, Values& values);

}  // namespace trainctl
