// Converts a plan's axes per factor to the layout of every operand of a node.
#include <algorithm>
#include <numeric>

#include "engine/base/error.h"
#include "engine/graph/contraction.h"
#include "engine/ops/op_def.h"
#include "engine/plan/per_rank.h"
#include "engine/plan/plan.h"

namespace trainctl {
namespace {

bool is_parameter_gradient(const Graph& graph, TensorId tensor, TensorId* parameter) {
  for (const Update& update : graph.updates) {
    if (std::find(update.gradients.begin(), update.gradients.end(), tensor) == update.gradients.end()) continue;
    *parameter = update.parameter;
    return true;
  }
  return false;
}

/// The layout of a tensor that only its rank has: the loss and metrics are partial over all axes, a parameter's
/// gradient over those that do not cut the parameter.
Layout local_output(const Graph& graph, const Plan& plan, TensorId tensor) {
  Layout layout = Layout::replicated(static_cast<int>(graph.tensors[tensor].shape.size()));
  TensorId parameter = -1;
  const bool is_reported = graph.reported_place(tensor) >= 0,
             is_gradient = is_parameter_gradient(graph, tensor, &parameter);
  if (is_reported || (is_gradient && plan.divides_micro_batches())) {
    for (Axis a = 0; a < plan.mesh.num_axes(); ++a) layout.partial.push_back(a);
  } else if (is_gradient) {
    layout.partial = plan.variable(parameter).layout.replica_axes(plan.mesh);
  }
  return layout;
}

/// True if the node computes with statistics of its own rank's rows (kPerRank).
bool is_per_rank(const Node& node) { return node.attrs.flag(kPerRank); }

/// Returns the axes over which a tensor is a partial sum when its producer has written it.
Axes partial_axes_of_maker(const Graph& graph, const Plan& plan, TensorId tensor) {
  const Node& maker = graph.nodes[static_cast<size_t>(graph.tensors[static_cast<size_t>(tensor)].producer)];
  const auto output = std::find(maker.outputs.begin(), maker.outputs.end(), tensor) - maker.outputs.begin();
  return output_layout(graph, plan, maker, static_cast<int>(output)).partial;
}

}  // namespace

Layout rule_layout(const TensorRule& rule, const std::vector<Factor>& factors, const std::vector<Axes>& factor_axes) {
  Layout layout;
  layout.dims.reserve(rule.size());
  for (const DimRule& dim : rule) {
    const int factor = cut_factor(dim, factors);
    layout.dims.push_back(factor < 0 ? Axes{} : factor_axes[factor]);
  }
  for (size_t d = layout.dims.size(); d-- > 1;)
    for (size_t earlier = 0; earlier < d && !layout.dims[d].empty(); ++earlier)
      if (!layout.dims[earlier].empty()) layout.dims[earlier] = without(layout.dims[earlier], layout.dims[d]);
  return layout;
}

Axes partial_axes(const Rule& rule, int output, const std::vector<Axes>& factor_axes) {
  Axes axes;
  for (int f = 0; f < static_cast<int>(factor_axes.size()); ++f)
    if (!factor_axes[f].empty() && is_contracted(rule, output, f))
      axes.insert(axes.end(), factor_axes[f].begin(), factor_axes[f].end());
  if (axes.empty()) return axes;
  for (const DimRule& dim : rule.outputs[static_cast<size_t>(output)])
    for (const int f : dim) axes = without(axes, factor_axes[static_cast<size_t>(f)]);
  std::sort(axes.begin(), axes.end());
  axes.erase(std::unique(axes.begin(), axes.end()), axes.end());
  return axes;
}

Axes inner_axes(const Graph& graph, const Plan& plan, const Node& node) {
  Axes axes;
  if (node.rule.inner.empty()) return axes;
  const Layout layout = input_layout(graph, plan, node, 0);
  for (size_t d = 0; d < layout.dims.size(); ++d) {
    const int factor = cut_factor(node.rule.inputs[0][d], graph.layers[node.layer].factors);
    const bool inner = std::find(node.rule.inner.begin(), node.rule.inner.end(), factor) != node.rule.inner.end();
    if (inner) axes.insert(axes.end(), layout.dims[d].begin(), layout.dims[d].end());
  }
  return axes;
}

bool share_statistics(const Node& first, const Node& second) {
  const std::optional<InnerSum>&a = get_op(first.op).inner_sum, &b = get_op(second.op).inner_sum;
  if (!a || !b || a->stats != b->stats || first.layer != second.layer || first.attrs != second.attrs) return false;
  const size_t reads = a->reads > 0 ? a->reads : std::max(first.inputs.size(), second.inputs.size());
  if (reads > std::min(first.inputs.size(), second.inputs.size())) return false;
  return std::equal(first.inputs.begin(), first.inputs.begin() + static_cast<std::ptrdiff_t>(reads),
                    second.inputs.begin());
}

Layout input_layout(const Graph& graph, const Plan& plan, const Node& node, int i) {
  if (plan.has_local_tensors()) return Layout::replicated(static_cast<int>(graph.tensors[node.inputs[i]].shape.size()));
  if (const NodePlan* separate = plan.planned_separately(node)) return separate->inputs[i];
  Layout layout =
      rule_layout(node.rule.inputs[i], graph.layers[node.layer].factors, plan.layers[node.layer].factor_axes);
  const NodeId maker = graph.tensors[node.inputs[i]].producer;
  if (is_per_rank(node) && maker >= 0 && is_per_rank(graph.nodes[maker]) && graph.nodes[maker].layer == node.layer)
    layout.partial = partial_axes_of_maker(graph, plan, node.inputs[i]);
  return layout;
}

int64_t shards_of_statistics(const Graph& graph, const Plan& plan, const Node& node) {
  if (plan.hybrid()) return 1;  // the shapes in the graph already are those of one rank
  const Layout x = layer_inputs(graph, plan, node.layer)[0];
  const auto channels = static_cast<size_t>(node.attrs.integer("dim"));
  int64_t shards = 1;
  for (size_t d = 0; d < x.dims.size(); ++d)
    if (d != channels) shards *= plan.mesh.ways(x.dims[d]);
  return shards;
}

Layout output_layout(const Graph& graph, const Plan& plan, const Node& node, int i) {
  if (plan.has_local_tensors()) return local_output(graph, plan, node.outputs[i]);
  if (const NodePlan* separate = plan.planned_separately(node)) return separate->outputs[i];
  const std::vector<Axes>& factor_axes = plan.layers[node.layer].factor_axes;
  Layout layout = rule_layout(node.rule.outputs[i], graph.layers[node.layer].factors, factor_axes);
  layout.partial = partial_axes(node.rule, i, factor_axes);
  return layout;
}

const NodePlan* Plan::planned_separately(const Node& node) const {
  const auto found = node.outputs.empty() ? separate_nodes.end() : separate_nodes.find(node.outputs[0]);
  return found == separate_nodes.end() ? nullptr : &found->second;
}

int Plan::virtual_stage_of(const Node& node) const {
  const NodePlan* node_plan = planned_separately(node);
  return node_plan == nullptr ? layers[node.layer].virtual_stage : node_plan->virtual_stage;
}

int Plan::first_micro_batch(int rank_in_stage) const {
  if (rank_micro_batches.empty()) return 0;
  return std::accumulate(rank_micro_batches.begin(), rank_micro_batches.begin() + rank_in_stage, 0);
}

std::string Plan::stage_text(int virtual_stage) const {
  const std::string stage = "stage " + std::to_string(virtual_stage % num_stages);
  return chunks == 1 ? stage : "chunk " + std::to_string(virtual_stage / num_stages) + " of " + stage;
}

const VariablePlan& Plan::variable(TensorId tensor) const {
  for (const VariablePlan& variable : variables) {
    if (variable.tensor == tensor) return variable;
  }
  check(false, "every parameter and state has a VariablePlan");
  return variables.front();
}

}  // namespace trainctl
