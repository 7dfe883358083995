// The rows of sequences in the tensors of a graph: tokens [batch, rows], or vectors [batch, rows, features].
#include "engine/graph/row_dims.h"

#include <algorithm>

namespace trainctl {
namespace {

/// Returns the tensor of tokens or vectors that the network reads; null if the data are not sequences.
const Tensor* sequences(const Graph& graph) {
  for (const Tensor& tensor : graph.tensors) {
    if (tensor.kind != TensorKind::input || tensor.shape.empty()) continue;
    const bool is_sequence = tensor.shape.size() == 3 || (tensor.shape.size() == 2 && tensor.dtype == DType::i32);
    return is_sequence ? &tensor : nullptr;
  }
  return nullptr;
}

int factor_of_dim(const Graph& graph, const Node& node, const TensorRule& rule, int dim) {
  if (dim < 0) return -1;
  return cut_factor(rule[static_cast<size_t>(dim)], graph.layers[static_cast<size_t>(node.layer)].factors);
}

int row_factor(const Graph& graph, const Node& node, const std::vector<int>& rows) {
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    const int factor = factor_of_dim(graph, node, node.rule.inputs[i], rows[static_cast<size_t>(node.inputs[i])]);
    if (factor >= 0) return factor;
  }
  return -1;
}

}  // namespace

std::vector<int> row_dims(const Graph& graph) {
  const Tensor* const first = sequences(graph);
  if (first == nullptr) return {};
  std::vector<int> rows(graph.tensors.size(), -1);
  for (size_t t = 0; t < graph.tensors.size(); ++t) {
    const Tensor& tensor = graph.tensors[t];
    if (tensor.kind == TensorKind::input && tensor.shape.size() >= 2 && tensor.shape[1] == first->shape[1]) rows[t] = 1;
  }
  for (const Node& node : graph.nodes) {
    if (node.phase != Phase::forward) continue;
    const int factor = row_factor(graph, node, rows);
    for (size_t o = 0; factor >= 0 && o < node.outputs.size(); ++o)
      for (size_t d = 0; d < node.rule.outputs[o].size(); ++d)
        if (factor_of_dim(graph, node, node.rule.outputs[o], static_cast<int>(d)) == factor)
          rows[static_cast<size_t>(node.outputs[o])] = static_cast<int>(d);
  }
  return rows;
}

bool rows_may_be_reordered(const Graph& graph) {
  const std::vector<int> rows = row_dims(graph);
  if (rows.empty()) return false;
  return std::none_of(graph.nodes.begin(), graph.nodes.end(), [&](const Node& node) {
    if (node.phase != Phase::forward) return false;
    const int factor = row_factor(graph, node, rows);
    if (factor < 0) return false;
    if (std::find(node.rule.inner.begin(), node.rule.inner.end(), factor) != node.rule.inner.end()) return true;
    for (const auto* tensors : {&node.rule.inputs, &node.rule.outputs})
      for (const TensorRule& tensor : *tensors)
        for (const DimRule& dim : tensor)
          if (dim.size() > 1 && std::find(dim.begin(), dim.end(), factor) != dim.end()) return true;
    return false;
  });
}

}  // namespace trainctl
