// Look-ups in a graph, and its text form.
#include "engine/graph/graph.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/base/text.h"

namespace trainctl {
namespace {

std::string_view kind_name(TensorKind kind) {
  switch (kind) {
    case TensorKind::input:
      return "input";
    case TensorKind::parameter:
      return "parameter";
    case TensorKind::state:
      return "state";
    case TensorKind::activation:
      return "activation";
    case TensorKind::gradient:
      return "gradient";
  }
  return "?";
}

std::string init_text(const Init& init) {
  switch (init.kind) {
    case Init::Kind::constant:
      return fmt::format(" = {}", init.value);
    case Init::Kind::uniform:
      return fmt::format(" = uniform(-{0:.6g}, {0:.6g})", init.value);
    case Init::Kind::normal:
      return fmt::format(" = normal(0, {:.6g})", init.value);
    case Init::Kind::row_norms:
      return fmt::format(" = norms of the rows of {}", init.of);
  }
  return "";
}

std::string tensor_line(const Tensor& tensor) {
  std::string line = fmt::format("  {} {} {} {}", tensor.name, to_string(tensor.dtype), to_string(tensor.shape),
                                 kind_name(tensor.kind));
  const bool kept = tensor.kind == TensorKind::parameter || tensor.kind == TensorKind::state;
  if (tensor.frozen) line += tensor.is_base ? ", frozen, not in checkpoints" : ", frozen";
  if (tensor.packing != Packing::none) line += fmt::format(", stored as {}", to_string(tensor.packing));
  if (kept) line += init_text(tensor.init);
  return line + "\n";
}

std::string names(const Graph& graph, const std::vector<TensorId>& tensors) {
  std::vector<std::string> words;
  for (TensorId tensor : tensors) words.push_back(graph.tensors[tensor].name);
  return join(words);
}

std::string node_line(const Graph& graph, const Node& node) {
  const Layer& layer = graph.layers[node.layer];
  std::string line = fmt::format("  {} {}: ", node.phase == Phase::forward ? "forward " : "backward", node.name);
  if (!node.outputs.empty()) line += names(graph, node.outputs) + " = ";
  line += fmt::format("{}({})", node.op, names(graph, node.inputs));
  if (!node.attrs.empty()) line += " " + to_string(node.attrs);
  return line + "  " + to_string(node.rule, layer.factors) + "\n";
}

}  // namespace

std::optional<TensorId> Graph::find_tensor(std::string_view name) const {
  const auto it = std::find_if(tensors.begin(), tensors.end(), [&](const Tensor& t) { return t.name == name; });
  if (it == tensors.end()) return std::nullopt;
  return static_cast<TensorId>(it - tensors.begin());
}

std::optional<LayerId> Graph::find_layer(std::string_view name) const {
  const auto it = std::find_if(layers.begin(), layers.end(), [&](const Layer& l) { return l.name == name; });
  if (it == layers.end()) return std::nullopt;
  return static_cast<LayerId>(it - layers.begin());
}

int Graph::reported_place(TensorId tensor) const {
  if (tensor == loss) return tensor < 0 ? -1 : 0;
  for (size_t m = 0; m < metrics.size(); ++m)
    if (metrics[m].tensor == tensor) return static_cast<int>(m) + 1;
  return -1;
}

std::vector<NodeId> Graph::consumers(TensorId tensor) const {
  std::vector<NodeId> found;
  for (size_t n = 0; n < nodes.size(); ++n) {
    const auto& inputs = nodes[n].inputs;
    if (std::find(inputs.begin(), inputs.end(), tensor) != inputs.end()) found.push_back(static_cast<NodeId>(n));
  }
  return found;
}

std::string to_string(const Graph& graph) {
  std::string text = "tensors\n";
  for (const Tensor& tensor : graph.tensors) text += tensor_line(tensor);
  text += "nodes\n";
  for (const Node& node : graph.nodes) text += node_line(graph, node);
  if (!graph.updates.empty()) text += "updates\n";
  for (const Update& update : graph.updates) {
    text += fmt::format("  {} from {}\n", graph.tensors[update.parameter].name, names(graph, update.gradients));
  }
  return text;
}

}  // namespace trainctl
