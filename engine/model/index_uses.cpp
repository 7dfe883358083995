// Finds uses of integers of the data set as indices: the classes of a loss, the rows of a table. The bound is the one
// that the op's kernel states.
#include "engine/model/index_uses.h"

#include <algorithm>

#include "engine/ops/op_def.h"

namespace trainctl {
namespace {

/// Indices that this node reads must be below this number; 0: its inputs are not indices.
int64_t bound_of(const Graph& graph, const Node& node) {
  const KernelDef& kernel = get_op(node.op).kernel;
  if (kernel.example == nullptr) return 0;
  const auto below = kernel.example().below;
  if (below == nullptr) return 0;
  std::vector<TensorInfo> inputs;
  for (const TensorId id : node.inputs) {
    const Tensor& tensor = graph.tensors[static_cast<size_t>(id)];
    inputs.push_back({tensor.shape, tensor.dtype});
  }
  return below(inputs, node.attrs);
}

/// Integers are moved and reshaped on their way, but never computed.
void add_inputs_behind(const Graph& graph, TensorId id, std::vector<std::string>& names) {
  const Tensor& tensor = graph.tensors[static_cast<size_t>(id)];
  if (tensor.dtype != DType::i32) return;
  if (tensor.kind == TensorKind::input) names.push_back(tensor.name);
  if (tensor.producer < 0) return;
  for (const TensorId input : graph.nodes[static_cast<size_t>(tensor.producer)].inputs)
    add_inputs_behind(graph, input, names);
}

std::string reader_of(const Graph& graph, const Node& node) {
  const Layer& layer = graph.layers[static_cast<size_t>(node.layer)];
  return (layer.name == "loss" ? "the loss" : "layer '" + layer.name + "'") + " (" + layer.type + ")";
}

}  // namespace

std::vector<IndexUse> index_uses(const Graph& graph) {
  std::vector<IndexUse> uses;
  for (const Node& node : graph.nodes) {
    if (node.phase != Phase::forward) continue;
    std::vector<std::string> names;
    for (const TensorId id : node.inputs) add_inputs_behind(graph, id, names);
    if (names.empty()) continue;
    const int64_t below = bound_of(graph, node);
    for (const std::string& name : names) {
      IndexUse use{name, reader_of(graph, node), below};
      if (node.attrs.has("ignore_index")) use.ignored = node.attrs.integer("ignore_index");
      if (below > 0 && std::find(uses.begin(), uses.end(), use) == uses.end()) uses.push_back(use);
    }
  }
  return uses;
}

}  // namespace trainctl
