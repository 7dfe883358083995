// Builds the backward nodes of one forward node, with rules in the factors of its layer. Used by an op's
// `backward`. Forward nodes: layer_builder.h.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "engine/graph/graph.h"
#include "engine/ops/op_def.h"

namespace trainctl {

/// The interface for an op's `backward`: one forward node, its tensors, and the gradients of its outputs.
///
///   g.set_in_grad(0, "matmul", {g.out_grad(), g.in(1)}, {{"transpose_b", true}});
///
/// A gradient has the rule of the tensor that it is the gradient of, so no letters are needed here.
class GradBuilder {
 public:
  /// The gradient of each output (-1: none), and the name for the gradient of each input ("": not needed).
  GradBuilder(Graph& graph, NodeId node, std::vector<TensorId> out_grads, std::vector<std::string> in_grad_names);

  const Node& node() const { return node_; }
  const Attrs& attrs() const { return node_.attrs; }
  Shape shape(TensorId tensor) const { return graph_.tensors[tensor].shape; }
  DType dtype(TensorId tensor) const { return graph_.tensors[tensor].dtype; }
  bool is_parameter(TensorId tensor) const { return graph_.tensors[tensor].kind == TensorKind::parameter; }
  int num_inputs() const { return static_cast<int>(node_.inputs.size()); }
  TensorId in(int i) const { return node_.inputs[i]; }
  TensorId out(int i = 0) const { return node_.outputs[i]; }
  /// The gradient of output i, which must exist (has_out_grad).
  TensorId out_grad(int i = 0) const;
  bool has_out_grad(int i = 0) const { return out_grads_[i] >= 0; }
  /// True if the gradient of input i is needed (false for data, labels and tensors that only they feed).
  bool needs_in_grad(int i) const { return !in_grad_names_[i].empty(); }

  /// Adds one node that computes the gradient of input i; no node if it is not needed.
  void set_in_grad(int i, std::string_view op, std::vector<TensorId> inputs, Attrs attrs = {});
  /// The gradient of input i is this existing tensor (add's backward passes on its output's gradient).
  void pass_in_grad(int i, TensorId gradient);
  /// Adds one node whose outputs are the gradients of several inputs, in the order of `which`; all of them are
  /// computed if any is needed. Returns them; empty if none is needed.
  std::vector<TensorId> set_in_grads(const std::vector<int>& which, std::string_view op, std::vector<TensorId> inputs,
                                     Attrs attrs = {});
  /// Adds a helper node inside the layer; its outputs have the shapes and rules of the tensors in `like`.
  std::vector<TensorId> emit(std::string_view op, std::vector<TensorId> inputs, Attrs attrs,
                             const std::vector<TensorId>& like, std::string_view suffix);

  /// The gradients that were set, one per input; -1 if not set.
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
