// Builds the backward nodes of one forward node, with rules in the factors of its layer: what an op's `backward` uses.
// Forward nodes: layer_builder.h.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "engine/graph/graph.h"
#include "engine/ops/op_def.h"

namespace trainctl {

/// What an op's `backward` sees: one forward node, its tensors, and the gradients of its outputs.
///
///   g.set_in_grad(0, "matmul", {g.out_grad(), g.in(1)}, {{"transpose_b", true}});
///
/// A gradient has the rule of what it is the gradient of, so no letters are written here.
class GradBuilder {
 public:
  /// The gradient of each output (-1: none), and the name that the gradient of each input shall have
  /// ("": nobody needs it).
  GradBuilder(Graph& graph, NodeId node, std::vector<TensorId> out_grads, std::vector<std::string> in_grad_names);

  const Node& node() const { return node_; }
  const Attrs& attrs() const { return node_.attrs; }
  Shape shape(TensorId tensor) const { return graph_.tensors[tensor].shape; }
  DType dtype(TensorId tensor) const { return graph_.tensors[tensor].dtype; }
  bool is_parameter(TensorId tensor) const { return graph_.tensors[tensor].kind == TensorKind::parameter; }
  int num_inputs() const { return static_cast<int>(node_.inputs.size()); }
  TensorId in(int i) const { return node_.inputs[i]; }
  TensorId out(int i = 0) const { return node_.outputs[i]; }
  /// The gradient of output i. Must be there (has_out_grad).
  TensorId out_grad(int i = 0) const;
  bool has_out_grad(int i = 0) const { return out_grads_[i] >= 0; }
  /// Whether anybody needs the gradient of input i (false for data, labels and what only they feed).
  bool needs_in_grad(int i) const { return !in_grad_names_[i].empty(); }

  /// One node that makes the gradient of input i. No node where nobody needs it.
  void set_in_grad(int i, std::string_view op, std::vector<TensorId> inputs, Attrs attrs = {});
  /// The gradient of input i is this tensor, as it is (add's backward hands its own on).
  void pass_in_grad(int i, TensorId gradient);
  /// One node whose outputs are the gradients of several inputs, in the order of `which`; all of them
  /// are made where any is needed. Returns them, nothing where none is needed.
  std::vector<TensorId> set_in_grads(const std::vector<int>& which, std::string_view op, std::vector<TensorId> inputs,
                                     Attrs attrs = {});
  /// A helper node inside the layer whose outputs have the shape and rule of `like` each.
  std::vector<TensorId> emit(std::string_view op, std::vector<TensorId> inputs, Attrs attrs,
                             const std::vector<TensorId>& like, std::string_view suffix);

  /// What was set, one an input; -1 where nothing was.
  const std::vector<TensorId>& in_grads() const { return in_grads_; }

 private:
  std::vector<TensorId> append(std::string_view op, std::vector<TensorId> inputs, Attrs attrs,
                               const std::vector<TensorId>& like, const std::vector<std::string>& names,
                               std::string_view suffix);
  std::string grad_suffix(int i) const;

  Graph& graph_;
  Node node_;  ///< a copy: appending nodes moves the graph's
  std::vector<TensorId> out_grads_;
  std::vector<std::string> in_grad_names_;
  std::vector<TensorId> in_grads_;
  std::map<TensorId, TensorRule> rules_;
};

}  // namespace trainctl
