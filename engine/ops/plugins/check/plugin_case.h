// An example of a plugin's op as a graph: the layer and the node of its gradient, as a job has them.
#pragma once

#include <string>
#include <vector>

#include "engine/graph/graph.h"
#include "engine/ops/plugins/plugin_op.h"

namespace trainctl {

/// Elements of whole tensors by id, indices too. Empty: not computed yet.
using PluginValues = std::vector<std::vector<double>>;

struct PluginCase {
  const PluginOp* op = nullptr;
  const trainctl_example* example = nullptr;
  Graph graph;
  Node forward, backward;           ///< `backward` has no op if no gradient is wanted
  std::vector<TensorId> out_grads;  ///< one per output
  std::vector<TensorId> in_grads;   ///< one per input and parameter; -1: not wanted

  bool has_backward() const { return !backward.op.empty(); }
  /// "input x", "gradient of parameter a".
  std::string name_of(TensorId tensor) const;
};

/// `wanted`: bit i: the gradient of input or parameter i, if it has one. `given`: bit o: output o has a gradient.
/// Throws ShapeError and PluginFailure.
PluginCase build_plugin_case(const PluginOp& op, const trainctl_example& example, unsigned wanted = ~0U,
                             unsigned given = ~0U);

/// Random values of inputs, parameters and gradients of outputs.
PluginValues plugin_values(const PluginCase& built);

}  // namespace trainctl
