// The graph of an evaluation, derived from the training graph: only the forward pass, with fixed weights. batch_norm
// reads its running statistics, and dropout passes its input on (OpDef::in_evaluation).
#include "engine/model/evaluation.h"

#include <numeric>
#include <utility>
#include <vector>

#include "engine/base/error.h"
#include "engine/ops/op_def.h"

namespace trainctl {
namespace {

/// Returns for each tensor the one that an evaluation reads in its place: itself, unless an op passes its input on.
std::vector<TensorId> replacements(const Graph& graph) {
  std::vector<TensorId> instead(graph.tensors.size());
  std::iota(instead.begin(), instead.end(), 0);
  for (const Node& node : graph.nodes) {
    if (node.phase != Phase::forward) continue;
    switch (get_op(node.op).in_evaluation) {
      case InEvaluation::runs:
        break;
      case InEvaluation::passes_on:  // nodes are in order: its inputs are replaced already
        instead[static_cast<size_t>(node.outputs[0])] = instead[static_cast<size_t>(node.inputs[0])];
        break;
      case InEvaluation::reads_state:
        for (size_t i = 0; 2 * i < node.inputs.size(); ++i)
          instead[static_cast<size_t>(node.inputs[i])] = node.inputs[i + node.inputs.size() / 2];
        break;
    }
  }
  return instead;
}

/// By node: whether it is forward and some wanted tensor depends on it.
std::vector<bool> needed_nodes(const Graph& graph, const std::vector<TensorId>& wanted) {
  std::vector<bool> needed(graph.nodes.size());
  std::vector<TensorId> open = wanted;
  while (!open.empty()) {
    const NodeId producer = graph.tensors[static_cast<size_t>(open.back())].producer;
    open.pop_back();
    if (producer < 0 || needed[static_cast<size_t>(producer)]) continue;
    needed[static_cast<size_t>(producer)] = true;
    const std::vector<TensorId>& inputs = graph.nodes[static_cast<size_t>(producer)].inputs;
    open.insert(open.end(), inputs.begin(), inputs.end());
  }
  return needed;
}

void keep_only(Graph& graph, const std::vector<bool>& needed) {
  std::vector<Node> nodes;
  for (Tensor& tensor : graph.tensors) tensor.producer = -1;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    if (!needed[n]) continue;
    nodes.push_back(std::move(graph.nodes[n]));
    for (const TensorId output : nodes.back().outputs)
      graph.tensors[static_cast<size_t>(output)].producer = static_cast<NodeId>(nodes.size()) - 1;
  }
  graph.nodes = std::move(nodes);
}

/// Running statistics are the same for each row.
void forget_mixed_rows(Graph& graph) {
  for (const Node& node : graph.nodes)
    if (get_op(node.op).in_evaluation == InEvaluation::reads_state)
      graph.layers[static_cast<size_t>(node.layer)].mixed_rows = 0;
}

}  // namespace

Graph forward_part(const Graph& trained, std::vector<TensorId>& wanted) {
  Graph graph = trained;
  graph.is_evaluation = true;
  graph.updates.clear();
  graph.prints.clear();
  forget_mixed_rows(graph);
  const std::vector<TensorId> instead = replacements(graph);
  for (Node& node : graph.nodes)
    if (node.phase == Phase::forward && get_op(node.op).in_evaluation == InEvaluation::runs)
      for (TensorId& input : node.inputs) input = instead[static_cast<size_t>(input)];
  for (Node& node : graph.nodes)
    if (const char* attr = get_op(node.op).training_attr; attr != nullptr) node.attrs.erase(attr);
  for (TensorId& tensor : wanted) tensor = instead[static_cast<size_t>(tensor)];
  keep_only(graph, needed_nodes(graph, wanted));
  return graph;
}

namespace {

const Node& loss_node(const Graph& graph) {
  return graph.nodes[static_cast<size_t>(graph.tensors[static_cast<size_t>(graph.loss)].producer)];
}

}  // namespace

Graph evaluation_graph(const Graph& trained, TensorId printed) {
  check(trained.has_loss(), "an evaluation needs a loss");
  std::vector<TensorId> wanted = {trained.loss};
  for (const Metric& metric : trained.metrics) wanted.push_back(metric.tensor);
  if (printed >= 0) wanted.push_back(printed);
  Graph graph = forward_part(trained, wanted);
  if (printed >= 0) graph.prints = {wanted.back()};
  const LayerId loss = loss_node(graph).layer;
  const int64_t none = no_label(graph);
  for (Node& node : graph.nodes) {
    if (node.layer != loss) continue;
    const bool classes = graph.tensors[static_cast<size_t>(node.inputs[1])].dtype == DType::i32;
    if (!classes)
      node.attrs.set("nan_is_no_label", true);
    else if (!node.attrs.has("ignore_index"))
      node.attrs.set("ignore_index", none);
    if (const Value* mean = node.attrs.find("mean_scale")) {
      node.attrs.set("scale", *mean);
      node.attrs.erase("mean_scale");
    }
  }
  verify_graph(graph);
  return graph;
}

Graph prediction_graph(const Graph& trained, TensorId wanted) {
  std::vector<TensorId> tensors = {wanted};
  Graph graph = forward_part(trained, tensors);
  graph.loss = -1;
  graph.metrics.clear();
  graph.prints = tensors;
  verify_graph(graph);
  return graph;
}

int32_t no_label(const Graph& evaluation) {
  const int64_t none = evaluation.has_loss() ? loss_node(evaluation).attrs.integer("ignore_index", kNoLabel) : 0;
  return static_cast<int32_t>(none);
}

LayerId mixes_rows(const Graph& evaluation) {
  for (const Node& node : evaluation.nodes)
    if (evaluation.layers[static_cast<size_t>(node.layer)].mixed_rows > 0) return node.layer;
  return -1;
}

LayerId reads_label(const Graph& evaluation) {
  const auto label = evaluation.find_tensor("label");
  if (!label) return -1;
  const LayerId loss = evaluation.has_loss() ? loss_node(evaluation).layer : -1;
  for (const NodeId reader : evaluation.consumers(*label))
    if (const LayerId layer = evaluation.nodes[static_cast<size_t>(reader)].layer; layer != loss) return layer;
  return -1;
}

}  // namespace trainctl
