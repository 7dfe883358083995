// Determines which tensors cross stages, and in which layout. A tensor is sent in the layout on the path from the
// producer's to the consumer's that needs the fewest bytes per rank. The producer runs the steps of the path before it,
// the consumer those after it. At equal bytes a whole tensor is preferred to a partial sum, and then the earlier
// layout.
#include <algorithm>

#include "engine/base/error.h"
#include "engine/compile/lower/transfers.h"
#include "engine/plan/traffic/redistribution.h"

namespace trainctl {
namespace {

Layout sent_layout(const Plan& plan, const Tensor& tensor, const Layout& from, const Layout& to,
                   const CostModel& cost) {
  if (plan.hybrid()) return from;
  const auto rank_of = [&](const Layout& layout) {
    return std::pair(num_elements(layout.local_shape(plan.mesh, tensor.shape)), layout.is_partial());
  };
  Layout best = from;
  for (const RedistributionStep& step : plan_redistribution(plan.mesh, tensor.shape, tensor.dtype, from, to, cost)) {
    if (rank_of(step.after) < rank_of(best)) best = step.after;
  }
  return best;
}

}  // namespace

std::vector<Transfer> plan_transfers(const Graph& graph, const Plan& plan, const CostModel& cost) {
  std::vector<Transfer> transfers;
  if (plan.num_virtual_stages() == 1) return transfers;
  std::vector<std::vector<std::pair<NodeId, int>>> readers(graph.tensors.size());
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      readers[node.inputs[i]].emplace_back(static_cast<NodeId>(n), static_cast<int>(i));
    }
  }
  for (const Node& node : graph.nodes) {
    const int from = plan.virtual_stage_of(node);
    for (size_t o = 0; o < node.outputs.size(); ++o) {
      const TensorId tensor = node.outputs[o];
      std::vector<int> served = {from};
      for (const auto& [reader, input] : readers[tensor]) {
        const Node& consumer = graph.nodes[reader];
        const int to = plan.virtual_stage_of(consumer);
        if (std::find(served.begin(), served.end(), to) != served.end()) continue;
        served.push_back(to);
        check(node.phase == Phase::forward ? from < to : from > to,
              "activations flow to later stages and gradients to earlier ones: " + graph.tensors[tensor].name);
        const Layout layout =
            sent_layout(plan, graph.tensors[tensor], output_layout(graph, plan, node, static_cast<int>(o)),
                        input_layout(graph, plan, consumer, input), cost);
        transfers.push_back({tensor, from, to, node.phase, layout});
      }
    }
  }
  return transfers;
}

}  // namespace trainctl
