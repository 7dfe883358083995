// Makes a graph of one forward node, and prints its backward nodes.
#include "tests/ops_rules/one_node.h"

#include <fmt/format.h>

#include <set>

#include "engine/ops/grad_builder.h"
#include "engine/ops/layer_builder.h"

namespace trainctl {
namespace {

std::set<int> factors_of(const TensorRule& rule) {
  std::set<int> factors;
  for (const DimRule& dim : rule) factors.insert(dim.begin(), dim.end());
  return factors;
}

TensorId add_tensor(Graph& graph, std::string name, const TensorInfo& info, TensorKind kind) {
  graph.tensors.push_back({.name = std::move(name), .shape = info.shape, .dtype = info.dtype, .kind = kind});
  return static_cast<TensorId>(graph.tensors.size() - 1);
}

}  // namespace

Graph one_node(const Given& given) {
  Graph graph;
  graph.layers.push_back({.name = "op", .type = given.op});
  std::vector<TensorId> inputs;
  for (size_t i = 0; i < given.inputs.size(); ++i) {
    inputs.push_back(add_tensor(graph, fmt::format("in{}", i), given.inputs[i], TensorKind::input));
  }
  LayerBuilder builder(graph, 0);
  const auto outputs = builder.emit(given.op, inputs, given.attrs);
  if (!outputs.empty()) builder.finish({outputs[0]});
  return graph;
}

std::string contracted(const Graph& graph, const Node& node, size_t i) {
  const std::set<int> kept = factors_of(node.rule.outputs[i]);
  std::set<int> lost;
  for (const TensorRule& input : node.rule.inputs) {
    for (int factor : factors_of(input)) {
      if (!kept.contains(factor)) lost.insert(factor);
    }
  }
  std::string text;
  for (int factor : lost) text += graph.layers[0].factors[factor].name;
  return text;
}

std::vector<std::string> backward_of(Graph& graph) {
  const Node node = graph.nodes[0];
  std::vector<TensorId> out_grads;
  for (size_t i = 0; i < node.outputs.size(); ++i) {
    const Tensor& out = graph.tensors[node.outputs[i]];
    out_grads.push_back(i > 0 ? -1 : add_tensor(graph, "dy", {out.shape, out.dtype}, TensorKind::input));
  }
  std::vector<std::string> names;
  for (TensorId input : node.inputs) {
    const Tensor& tensor = graph.tensors[input];
    names.push_back(tensor.dtype == DType::i32 ? "" : "grad." + tensor.name);
  }
  GradBuilder builder(graph, 0, out_grads, names);
  get_op(node.op).backward(builder);
  verify_graph(graph);

  std::vector<std::string> lines;
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    if (builder.in_grads()[i] >= 0 && builder.in_grads()[i] == out_grads[0])
      lines.push_back(fmt::format("pass in{}", i));
  }
  for (size_t n = 1; n < graph.nodes.size(); ++n) {
    const Node& made = graph.nodes[n];
    std::string line = fmt::format("{} {}", made.op, to_string(made.rule, graph.layers[0].factors));
    for (size_t i = 0; i < made.outputs.size(); ++i) {
      const std::string sums = contracted(graph, made, i);
      if (!sums.empty()) line += fmt::format(" sums {}", sums);
    }
    lines.push_back(line);
  }
  return lines;
}

}  // namespace trainctl
