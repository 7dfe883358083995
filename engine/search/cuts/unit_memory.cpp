// Computes the bytes that a rank keeps between forward and backward pass, for each way to cut a layer.
#include "engine/search/cuts/unit_memory.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "engine/ops/op_def.h"
#include "engine/plan/plan.h"

namespace trainctl {
namespace {

constexpr double kAlignment = 64;  // buffers in an arena begin at multiples of 64 bytes

std::vector<int> factors_of(const TensorRule& rule, const std::vector<Factor>& factors) {
  std::vector<int> cut;
  for (const DimRule& dim : rule)
    if (const int f = cut_factor(dim, factors); f >= 0) cut.push_back(f);
  return cut;
}

bool is_kept(const Graph& graph, TensorId tensor, const std::vector<std::vector<NodeId>>& consumers) {
  const Tensor& made = graph.tensors[static_cast<size_t>(tensor)];
  if (made.kind != TensorKind::activation) return false;
  if (made.producer >= 0 && get_op(graph.nodes[static_cast<size_t>(made.producer)].op).runs_again) return false;
  return std::any_of(consumers[static_cast<size_t>(tensor)].begin(), consumers[static_cast<size_t>(tensor)].end(),
                     [&](NodeId n) { return graph.nodes[static_cast<size_t>(n)].phase == Phase::backward; });
}

std::vector<std::vector<NodeId>> consumers_of(const Graph& graph) {
  std::vector<std::vector<NodeId>> consumers(graph.tensors.size());
  for (NodeId n = 0; n < static_cast<NodeId>(graph.nodes.size()); ++n)
    for (TensorId t : graph.nodes[static_cast<size_t>(n)].inputs) consumers[static_cast<size_t>(t)].push_back(n);
  return consumers;
}

}  // namespace

double in_arena(double bytes) { return std::ceil(bytes / kAlignment) * kAlignment; }

std::vector<UnitMemory> memory_by_unit(const CutNetwork& network, const BytesPerWeight& bytes) {
  const Graph& graph = network.graph;
  const auto consumers = consumers_of(graph);
  std::vector<UnitMemory> memory(network.units.all.size());
  std::set<TensorId> counted;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    if (node.phase != Phase::forward) continue;
    const std::vector<Factor>& factors = graph.layers[static_cast<size_t>(node.layer)].factors;
    UnitMemory& mine = memory[static_cast<size_t>(network.units.of_node[n])];
    for (size_t o = 0; o < node.outputs.size(); ++o) {
      const Tensor& tensor = graph.tensors[static_cast<size_t>(node.outputs[o])];
      if (is_kept(graph, node.outputs[o], consumers))
        mine.parts.push_back({static_cast<double>(bytes_of({tensor.shape, tensor.dtype})),
                              factors_of(node.rule.outputs[o], factors), true});
    }
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const Tensor& tensor = graph.tensors[static_cast<size_t>(node.inputs[i])];
      if (tensor.kind == TensorKind::input && counted.insert(node.inputs[i]).second)
        mine.parts.push_back({static_cast<double>(bytes_of({tensor.shape, tensor.dtype})),
                              factors_of(node.rule.inputs[i], factors), true});
      if (tensor.kind == TensorKind::parameter && counted.insert(node.inputs[i]).second)
        mine.parts.push_back({(tensor.packing != Packing::none ? static_cast<double>(byte_size(tensor.dtype))
                               : tensor.frozen                 ? bytes.frozen
                                                               : bytes.trained) *
                                  static_cast<double>(num_elements(tensor.shape)),
                              factors_of(node.rule.inputs[i], factors), false});
    }
  }
  return memory;
}

std::vector<double> kept_bytes(const Graph& graph, const Mesh& mesh, const std::vector<FactorAxes>& of_layer) {
  std::vector<LayerId> made_by(graph.tensors.size(), -1);
  for (const Node& node : graph.nodes)
    if (node.phase == Phase::forward)
      for (TensorId t : node.outputs) made_by[static_cast<size_t>(t)] = node.layer;
  std::vector<double> bytes(graph.layers.size(), 0);
  std::vector<std::vector<Layout>> kept(graph.tensors.size());
  for (const Node& node : graph.nodes) {
    if (node.phase != Phase::backward) continue;
    const size_t reader = static_cast<size_t>(node.layer);
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const size_t t = static_cast<size_t>(node.inputs[i]);
      const Tensor& tensor = graph.tensors[t];
      if (tensor.kind != TensorKind::activation && tensor.kind != TensorKind::input) continue;
      Layout layout = rule_layout(node.rule.inputs[i], graph.layers[reader].factors, of_layer[reader]);
      if (std::find(kept[t].begin(), kept[t].end(), layout) != kept[t].end()) continue;
      const double part = static_cast<double>(bytes_of({layout.local_shape(mesh, tensor.shape), tensor.dtype}));
      bytes[made_by[t] < 0 ? reader : static_cast<size_t>(made_by[t])] += in_arena(part);
      kept[t].push_back(std::move(layout));
    }
  }
  return bytes;
}

}  // namespace trainctl
