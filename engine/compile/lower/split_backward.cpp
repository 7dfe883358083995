// Finds the nodes of the backward pass for which no other rank waits.
//
//   dense:   dy -> dx     backward: the layer before it needs dx
//            dy -> dw     weight_gradients
//
// A node that computes both, such as that of a norm, stays in the backward task.
#include <algorithm>

#include "engine/compile/lower/lowering.h"

namespace trainctl {

std::vector<TaskKind> tasks_of_nodes(const Graph& graph, const Plan& plan) {
  std::vector<TaskKind> kinds;
  std::vector<std::vector<NodeId>> readers(graph.tensors.size());
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    kinds.push_back(graph.nodes[n].phase == Phase::forward ? TaskKind::forward : TaskKind::backward);
    for (TensorId tensor : graph.nodes[n].inputs) readers[tensor].push_back(static_cast<NodeId>(n));
  }
  if (!plan.pipeline(graph.trains()).splits_backward()) return kinds;
  for (size_t n = graph.nodes.size(); n-- > 0;) {
    const Node& node = graph.nodes[n];
    if (node.phase != Phase::backward) continue;
    const auto can_wait = [&](NodeId reader) {
      const Node& other = graph.nodes[reader];
      return kinds[reader] == TaskKind::weight_gradients && other.layer == node.layer &&
             plan.virtual_stage_of(other) == plan.virtual_stage_of(node);
    };
    const auto all_wait = [&](TensorId tensor) {
      return std::all_of(readers[tensor].begin(), readers[tensor].end(), can_wait);
    };
    if (std::all_of(node.outputs.begin(), node.outputs.end(), all_wait)) kinds[n] = TaskKind::weight_gradients;
  }
  return kinds;
}

}  // namespace trainctl
