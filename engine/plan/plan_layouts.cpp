// From a plan's axes per factor to the layout of every operand of a node.
#include <algorithm>

#include "engine/base/error.h"
#include "engine/plan/plan.h"

namespace trainctl {
namespace {

bool appears_in(const TensorRule& rule, int factor) {
  return std::any_of(rule.begin(), rule.end(),
                     [factor](const DimRule& dim) { return std::find(dim.begin(), dim.end(), factor) != dim.end(); });
}

bool is_parameter_gradient(const Graph& graph, TensorId tensor, TensorId* parameter) {
  for (const Update& update : graph.updates) {
    if (std::find(update.gradients.begin(), update.gradients.end(), tensor) == update.gradients.end()) continue;
    *parameter = update.parameter;
    return true;
  }
  return false;
}

Layout hybrid_output(const Graph& graph, const Plan& plan, TensorId tensor) {
  Layout layout = Layout::replicated(static_cast<int>(graph.tensors[tensor].shape.size()));
  TensorId parameter = -1;
  if (graph.reported_place(tensor) >= 0) {
    for (Axis a = 0; a < plan.mesh.num_axes(); ++a) layout.partial.push_back(a);
  } else if (is_parameter_gradient(graph, tensor, &parameter)) {
    layout.partial = plan.variable(parameter).layout.replica_axes(plan.mesh);
  }
  return layout;
}

}  // namespace

Layout rule_layout(const TensorRule& rule, const std::vector<Factor>& factors, const std::vector<Axes>& factor_axes) {
  Layout layout;
  layout.dims.reserve(rule.size());
  for (const DimRule& dim : rule) {
    const int factor = cut_factor(dim, factors);
    layout.dims.push_back(factor < 0 ? Axes{} : factor_axes[factor]);
  }
  return layout;
}

Axes partial_axes(const Rule& rule, int output, const std::vector<Axes>& factor_axes) {
  Axes axes;
  for (int f = 0; f < static_cast<int>(factor_axes.size()); ++f) {
    if (factor_axes[f].empty() || appears_in(rule.outputs[output], f)) continue;
    const bool reduced = std::any_of(rule.inputs.begin(), rule.inputs.end(),
                                     [f](const TensorRule& input) { return appears_in(input, f); });
    if (reduced) axes.insert(axes.end(), factor_axes[f].begin(), factor_axes[f].end());
  }
  std::sort(axes.begin(), axes.end());
  return axes;
}

Layout input_layout(const Graph& graph, const Plan& plan, const Node& node, int i) {
  if (plan.hybrid()) return Layout::replicated(static_cast<int>(graph.tensors[node.inputs[i]].shape.size()));
  return rule_layout(node.rule.inputs[i], graph.layers[node.layer].factors, plan.layers[node.layer].factor_axes);
}

Layout output_layout(const Graph& graph, const Plan& plan, const Node& node, int i) {
  if (plan.hybrid()) return hybrid_output(graph, plan, node.outputs[i]);
  const std::vector<Axes>& factor_axes = plan.layers[node.layer].factor_axes;
  Layout layout = rule_layout(node.rule.outputs[i], graph.layers[node.layer].factors, factor_axes);
  layout.partial = partial_axes(node.rule, i, factor_axes);
  return layout;
}

const VariablePlan& Plan::variable(TensorId tensor) const {
  for (const VariablePlan& variable : variables) {
    if (variable.tensor == tensor) return variable;
  }
  check(false, "every parameter and state has a VariablePlan");
  return variables.front();
}

}  // namespace trainctl
