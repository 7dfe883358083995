// Builds the nodes of a layer, forward and backward, so that every node's rule is in the layer's
// factors. model/ drives it; an op's `backward` uses GradBuilder.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "engine/graph/graph.h"
#include "engine/ops/op_def.h"

namespace trainctl {

/// Emits the forward nodes of one layer. The first node that names a tensor from outside gives its
/// dims new factors from the op's letters; later nodes of the layer join them by tensor.
class LayerBuilder {
 public:
  LayerBuilder(Graph& graph, LayerId layer);

  TensorId parameter(std::string_view name, Shape shape, Init init);  ///< "layer.name"
  TensorId state(std::string_view name, Shape shape, double value);

  /// Appends a node `<layer>.<suffix>` (or `<layer>` when suffix is empty); its outputs are named
  /// likewise, with .0 .1 … where there are several. Returns them.
  std::vector<TensorId> emit(std::string_view op, std::vector<TensorId> inputs, Attrs attrs = {},
                             std::string_view suffix = "");

  /// The dims of a tensor that this layer touches, in its factors.
  const TensorRule& rule_of(TensorId tensor) const;

 private:
  Graph& graph_;
  LayerId layer_;
  std::map<TensorId, TensorRule> rules_;
};

/// What an op's `backward` sees: one forward node, its tensors, and the gradients of its outputs.
///
///   set_in_grad(0, "matmul", {out_grad(0), in(1)}, {{"transpose_b", true}});
///
/// A gradient has the rule of what it is the gradient of, so no letters are written here.
class GradBuilder {
 public:
  const Node& node() const;
  const Attrs& attrs() const;
  const Shape& shape(TensorId tensor) const;
  TensorId in(int i) const;
  TensorId out(int i = 0) const;
  /// The gradient of output i. Must be there (has_out_grad).
  TensorId out_grad(int i = 0) const;
  bool has_out_grad(int i = 0) const;
  /// Whether anybody needs the gradient of input i (false for data, labels and what only they feed).
  bool needs_in_grad(int i) const;

  /// One node that makes the gradient of input i. No node where nobody needs it.
  void set_in_grad(int i, std::string_view op, std::vector<TensorId> inputs, Attrs attrs = {});
  /// The gradient of input i is this tensor, as it is (add's backward hands its own on).
  void pass_in_grad(int i, TensorId gradient);
  /// One node whose outputs are the gradients of several inputs, in the order of `which`.
  void set_in_grads(const std::vector<int>& which, std::string_view op, std::vector<TensorId> inputs,
                    Attrs attrs = {});
  /// A helper node inside the layer whose outputs have the shape and rule of `like` each.
  std::vector<TensorId> emit(std::string_view op, std::vector<TensorId> inputs, Attrs attrs,
                             const std::vector<TensorId>& like, std::string_view suffix);

 private:
  friend class BackwardPass;  // engine/model/backward.cpp
  struct State;
  explicit GradBuilder(State& state) : state_(state) {}
  State& state_;
};

}  // namespace trainctl
