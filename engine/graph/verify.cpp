// Invariants of every graph that build_graph returns. A failure here is our bug, never the user's.
#include <fmt/format.h>

#include <set>
#include <unordered_map>
#include <utility>

#include "engine/base/error.h"
#include "engine/graph/graph.h"

namespace trainctl {
namespace {

/// Does the same as check(), but formats the message only on failure.
template <class... Args>
void require(bool holds, fmt::format_string<Args...> what, Args&&... args) {
  if (!holds) check(false, fmt::format(what, std::forward<Args>(args)...));
}

/// Checks one operand of a node against its rule. It must have as many dims as the rule, and the size of each dim must
/// be the product of the sizes of its factors. No factor may occur twice: a cut of one factor cannot cut two dims of a
/// tensor.
void verify_operand(const Graph& graph, const Layer& layer, TensorId id, const TensorRule& rule,
                    const std::string& where) {
  require(id >= 0 && id < static_cast<TensorId>(graph.tensors.size()), "{}: no such tensor", where);
  const Tensor& tensor = graph.tensors[id];
  require(rule.size() == tensor.shape.size(), "{}: the rule of {} has {} dims, its shape is {}", where, tensor.name,
          rule.size(), to_string(tensor.shape));
  std::set<int> seen;
  for (size_t d = 0; d < rule.size(); ++d) {
    int64_t size = 1;
    for (int factor : rule[d]) {
      require(factor >= 0 && factor < static_cast<int>(layer.factors.size()), "{}: no such factor", where);
      require(seen.insert(factor).second, "{}: a factor is used twice in the rule of {}", where, tensor.name);
      size *= layer.factors[factor].size;
    }
    require(size == tensor.shape[d], "{}: dim {} of {} is {}, its factors multiply to {}", where, d, tensor.name,
            tensor.shape[d], size);
  }
}

void verify_operands(const Graph& graph, const Layer& layer, const std::vector<TensorId>& tensors,
                     const std::vector<TensorRule>& rules, const std::string& where) {
  require(tensors.size() == rules.size(), "{}: the number of tensors differs from the number of rules", where);
  for (size_t i = 0; i < tensors.size(); ++i) verify_operand(graph, layer, tensors[i], rules[i], where);
}

/// Checks that names of tensors are unique, and that Tensor::producer agrees with the outputs of nodes.
void verify_tensors(const Graph& graph) {
  std::set<std::string> names;
  for (const Tensor& tensor : graph.tensors) {
    require(names.insert(tensor.name).second, "two tensors are named {}", tensor.name);
    const bool made = tensor.kind == TensorKind::activation || tensor.kind == TensorKind::gradient;
    // An evaluation's graph has the tensors of the training graph, also those that it does not make.
    require(made == (tensor.producer >= 0) || (made && graph.is_evaluation), "{}: its producer disagrees with its kind",
            tensor.name);
    for (int64_t size : tensor.shape) require(size > 0, "{}: every dim is at least 1", tensor.name);
  }
  names.clear();
  for (const Layer& layer : graph.layers) require(names.insert(layer.name).second, "two layers named {}", layer.name);
}

void verify_node(const Graph& graph, NodeId id) {
  const Node& node = graph.nodes[id];
  require(node.layer >= 0 && node.layer < static_cast<LayerId>(graph.layers.size()), "{}: no such layer", node.name);
  const Layer& layer = graph.layers[node.layer];
  verify_operands(graph, layer, node.inputs, node.rule.inputs, node.name);
  verify_operands(graph, layer, node.outputs, node.rule.outputs, node.name);
  for (TensorId input : node.inputs) {
    require(graph.tensors[input].producer < id, "{} reads {} before it is produced", node.name,
            graph.tensors[input].name);
    require(graph.tensors[input].producer >= 0 || graph.tensors[input].kind != TensorKind::activation,
            "{} reads {}, which no node produces", node.name, graph.tensors[input].name);
  }
  const TensorKind kind = node.phase == Phase::forward ? TensorKind::activation : TensorKind::gradient;
  for (TensorId output : node.outputs) {
    require(graph.tensors[output].producer == id, "{}: its producer is another node", graph.tensors[output].name);
    require(graph.tensors[output].kind == kind, "{}: kind and phase disagree", graph.tensors[output].name);
  }
}

void verify_nodes(const Graph& graph) {
  std::set<std::string> names;
  bool backward = false;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    require(names.insert(node.name).second, "two nodes are named {}", node.name);
    require(!(backward && node.phase == Phase::forward), "{}: forward after backward", node.name);
    backward = node.phase == Phase::backward;
    verify_node(graph, static_cast<NodeId>(n));
  }
}

void verify_layers(const Graph& graph) {
  for (const Layer& layer : graph.layers) {
    verify_operands(graph, layer, layer.inputs, layer.input_rules, layer.name + " inputs");
    verify_operands(graph, layer, layer.outputs, layer.output_rules, layer.name + " outputs");
  }
}

/// "grad.x" has the shape of x, and so has each contribution to a parameter's update. A parameter's gradient is f32;
/// the gradient of any other tensor has that tensor's dtype.
void verify_gradients(const Graph& graph) {
  std::unordered_map<std::string_view, const Tensor*> by_name;
  for (const Tensor& tensor : graph.tensors) by_name.emplace(tensor.name, &tensor);
  for (const Tensor& tensor : graph.tensors) {
    if (tensor.kind != TensorKind::gradient || !tensor.name.starts_with("grad.")) continue;
    const auto of = by_name.find(std::string_view(tensor.name).substr(5));
    if (of == by_name.end()) continue;
    const DType dtype = of->second->kind == TensorKind::parameter ? DType::f32 : of->second->dtype;
    require(of->second->shape == tensor.shape, "{}: its shape differs from its tensor's", tensor.name);
    require(dtype == tensor.dtype, "{}: {} where {} was expected", tensor.name, to_string(tensor.dtype),
            to_string(dtype));
  }
  std::set<TensorId> updated;
  for (const Update& update : graph.updates) {
    const Tensor& parameter = graph.tensors.at(update.parameter);
    require(parameter.kind == TensorKind::parameter, "{} is updated, but is not a parameter", parameter.name);
    require(updated.insert(update.parameter).second, "{} is updated twice", parameter.name);
    require(!update.gradients.empty(), "{} is updated from no gradient", parameter.name);
    for (TensorId gradient : update.gradients) {
      require(graph.tensors.at(gradient).shape == parameter.shape, "{}: its gradient has another shape",
              parameter.name);
      require(graph.tensors[gradient].dtype == DType::f32, "{}: a parameter's gradient is f32", parameter.name);
    }
  }
}

}  // namespace

void verify_graph(const Graph& graph) {
  verify_tensors(graph);
  verify_nodes(graph);
  verify_layers(graph);
  verify_gradients(graph);
  require(graph.loss < static_cast<TensorId>(graph.tensors.size()), "the loss is a tensor of the graph");
  if (graph.loss >= 0) {
    const Tensor& loss = graph.tensors[graph.loss];
    require(loss.shape == Shape{1} && loss.dtype == DType::f32, "the loss has shape [1] and is f32");
  }
  for (const Metric& metric : graph.metrics) {
    const Tensor& sum = graph.tensors.at(metric.tensor);
    require(sum.shape == Shape{1} && sum.dtype == DType::f32, "{}: a metric has shape [1] and is f32", metric.name);
    require(graph.loss >= 0 &&
                graph.nodes.at(sum.producer).layer == graph.nodes.at(graph.tensors[graph.loss].producer).layer,
            "{}: a metric is of the loss's layer", metric.name);
  }
  for (TensorId print : graph.prints) {
    require(print >= 0 && print < static_cast<TensorId>(graph.tensors.size()), "print names a tensor of the graph");
  }
}

}  // namespace trainctl
