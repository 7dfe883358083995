// Divides the nodes of each layer into the units for which the planner chooses axes.
#include "engine/plan/axes/units.h"

#include "engine/graph/contraction.h"

namespace trainctl {
namespace {

/// Returns for each node whether it finishes its layer: besides parameters, it reads only results of the layer's
/// contraction or of another such node.
std::vector<bool> finishing_nodes(const Graph& graph) {
  std::vector<bool> finishes(graph.nodes.size());
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    if (node.phase != Phase::forward || contracts(node.rule)) continue;
    bool follows = false, apart = true;
    for (TensorId input : node.inputs) {
      const Tensor& tensor = graph.tensors[input];
      if (tensor.kind == TensorKind::parameter) continue;
      const bool here = tensor.producer >= 0 && graph.nodes[tensor.producer].layer == node.layer &&
                        (finishes[tensor.producer] || contracts(graph.nodes[tensor.producer].rule));
      follows = follows || here;
      apart = apart && here;
    }
    finishes[n] = follows && apart;
  }
  return finishes;
}

}  // namespace

Units find_units(const Graph& graph) {
  Units units;
  units.finish_of_layer.assign(graph.layers.size(), -1);
  const std::vector<bool> finishes = finishing_nodes(graph);
  std::vector<std::vector<NodeId>> finishing(graph.layers.size());
  for (size_t n = 0; n < graph.nodes.size(); ++n)
    if (finishes[n]) finishing[graph.nodes[n].layer].push_back(static_cast<NodeId>(n));
  for (LayerId l = 0; l < static_cast<LayerId>(graph.layers.size()); ++l) {
    units.of_layer.push_back(static_cast<int>(units.all.size()));
    units.all.push_back({l, {}});
    if (finishing[l].empty()) continue;
    units.finish_of_layer[l] = static_cast<int>(units.all.size());
    units.all.push_back({l, std::move(finishing[l])});
  }
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const LayerId l = graph.nodes[n].layer;
    units.of_node.push_back(finishes[n] ? units.finish_of_layer[l] : units.of_layer[l]);
  }
  return units;
}

}  // namespace trainctl
