// GradBuilder: backward nodes of one forward node. Every operand has the rule of its forward tensor: itself, or the
// tensor that it is the gradient of.
#include "engine/ops/grad_builder.h"

#include <fmt/format.h>

#include "engine/base/error.h"

namespace trainctl {

GradBuilder::GradBuilder(Graph& graph, NodeId node, std::vector<TensorId> out_grads,
                         std::vector<std::string> in_grad_names)
    : graph_(graph),
      node_(graph.nodes[node]),
      out_grads_(std::move(out_grads)),
      in_grad_names_(std::move(in_grad_names)),
      in_grads_(node_.inputs.size(), -1) {
  check(out_grads_.size() == node_.outputs.size(), "each output must have a gradient or -1");
  check(in_grad_names_.size() == node_.inputs.size(),
        "each input must have a name for its gradient, which may be empty");
  for (size_t i = 0; i < node_.inputs.size(); ++i) rules_.emplace(node_.inputs[i], node_.rule.inputs[i]);
  for (size_t i = 0; i < node_.outputs.size(); ++i) {
    rules_.emplace(node_.outputs[i], node_.rule.outputs[i]);
    if (out_grads_[i] >= 0) rules_.emplace(out_grads_[i], node_.rule.outputs[i]);
  }
}

TensorId GradBuilder::out_grad(int i) const {
  check(has_out_grad(i), "out_grad: this output has no gradient");
  return out_grads_[i];
}

/// "grad_weight" for "layer1.weight", "grad_in0" for a tensor that is not a parameter of the layer.
std::string GradBuilder::grad_suffix(int i) const {
  const Tensor& tensor = graph_.tensors[node_.inputs[i]];
  if (tensor.kind != TensorKind::parameter) return fmt::format("grad_in{}", i);
  return "grad_" + tensor.name.substr(tensor.name.rfind('.') + 1);
}

std::vector<TensorId> GradBuilder::append(std::string_view op_name, std::vector<TensorId> inputs, Attrs attrs,
                                          const std::vector<TensorId>& like, const std::vector<std::string>& names,
                                          std::string_view suffix) {
  const OpDef& op = get_op(op_name);
  Node node{.name = fmt::format("{}.{}", node_.name, suffix), .op = op.name};
  node.layer = node_.layer;
  node.phase = Phase::backward;
  std::vector<TensorInfo> infos;
  for (TensorId input : inputs) {
    infos.push_back({graph_.tensors[input].shape, graph_.tensors[input].dtype});
    const auto rule = rules_.find(input);
    check(rule != rules_.end(), node.name + ": reads a tensor that its forward node does not touch");
    node.rule.inputs.push_back(rule->second);
  }
  const std::vector<TensorInfo> outputs = op.infer(infos, attrs);
  check(outputs.size() == like.size(), node.name + ": the number of outputs must equal the number of gradients");
  for (size_t i = 0; i < outputs.size(); ++i) {
    check(outputs[i].shape == graph_.tensors[like[i]].shape, node.name +
                                                                 ": a gradient must have the shape of its "
                                                                 "tensor");
    Tensor tensor{.name = names[i], .shape = outputs[i].shape};
    tensor.dtype = outputs[i].dtype;
    tensor.kind = TensorKind::gradient;
    tensor.producer = static_cast<NodeId>(graph_.nodes.size());
    tensor.batch = graph_.tensors[like[i]].batch;
    const TensorRule& rule = rules_.at(like[i]);
    node.rule.outputs.push_back(rule);
    node.outputs.push_back(static_cast<TensorId>(graph_.tensors.size()));
    rules_.emplace(node.outputs.back(), rule);
    graph_.tensors.push_back(std::move(tensor));
  }
  if (op.inner_sum) node.rule.inner = node_.rule.inner;
  node.inputs = std::move(inputs);
  node.attrs = std::move(attrs);
  std::vector<TensorId> made = node.outputs;
  graph_.nodes.push_back(std::move(node));
  return made;
}

void GradBuilder::set_in_grad(int i, std::string_view op, std::vector<TensorId> inputs, Attrs attrs) {
  if (!needs_in_grad(i)) return;
  pass_in_grad(i, append(op, std::move(inputs), std::move(attrs), {in(i)}, {in_grad_names_[i]}, grad_suffix(i))[0]);
}

void GradBuilder::pass_in_grad(int i, TensorId gradient) {
  if (!needs_in_grad(i)) return;
  check(in_grads_[i] < 0, node_.name + ": an input's gradient is set twice");
  check(graph_.tensors[gradient].shape == graph_.tensors[in(i)].shape,
        node_.name + ": a gradient must have the shape of its tensor");
  in_grads_[i] = gradient;
}

std::vector<TensorId> GradBuilder::set_in_grads(const std::vector<int>& which, std::string_view op,
                                                std::vector<TensorId> inputs, Attrs attrs) {
  std::vector<TensorId> like;
  std::vector<std::string> names;
  std::string suffix = "grad";
  bool needed = false;
  for (int i : which) {
    needed = needed || needs_in_grad(i);
    like.push_back(in(i));
    suffix += grad_suffix(i).substr(4);
  }
  if (!needed) return {};
  for (int i : which) {
    const std::string unused = fmt::format("{}.{}.unused{}", node_.name, suffix, i);
    names.push_back(needs_in_grad(i) ? in_grad_names_[i] : unused);
  }
  const auto gradients = append(op, std::move(inputs), std::move(attrs), like, names, suffix);
  for (size_t k = 0; k < which.size(); ++k) pass_in_grad(which[k], gradients[k]);
  return gradients;
}

std::vector<TensorId> GradBuilder::emit(std::string_view op, std::vector<TensorId> inputs, Attrs attrs,
                                        const std::vector<TensorId>& like, std::string_view suffix) {
  std::vector<std::string> names;
  for (size_t i = 0; i < like.size(); ++i) {
    names.push_back(fmt::format("grad.{}.{}", node_.name, suffix));
    if (i > 0) names.back() += fmt::format(".{}", i);
  }
  return append(op, std::move(inputs), std::move(attrs), like, names, suffix);
}

}  // namespace trainctl
