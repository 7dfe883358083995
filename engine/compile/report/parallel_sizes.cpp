// A plan as a product of data x tensor x context x pipeline parallelism, the terms of Megatron-LM, if it is one. Each
// axis of the mesh has a role in a layer: it cuts the batch, dims of the weights, another dim, or nothing.
#include "engine/compile/report/parallel_sizes.h"

#include <algorithm>

#include "engine/ops/moe/expert_load.h"
#include "engine/ops/op_def.h"
#include "engine/plan/axes/sharding_facts.h"

namespace trainctl {
namespace {

enum class Role : uint8_t { none, batch, weights, other };

/// Returns for each layer whether it multiplies by a weight.
std::vector<bool> layers_with_products(const Graph& graph) {
  std::vector<bool> result(graph.layers.size());
  for (const Node& node : graph.nodes) {
    const KernelDef& kernel = get_op(node.op).kernel;
    if (node.phase != Phase::forward || !(kernel.is_product || kernel.has_products)) continue;
    const bool has_weight = std::any_of(node.inputs.begin(), node.inputs.end(), [&](TensorId t) {
      return graph.tensors[static_cast<size_t>(t)].kind == TensorKind::parameter;
    });
    if (has_weight) result[static_cast<size_t>(node.layer)] = true;
  }
  return result;
}

/// Returns for each factor of the layer whether it is a dim of a parameter.
std::vector<bool> factors_of_weights(const Graph& graph, const Layer& layer) {
  std::vector<bool> result(layer.factors.size());
  for (size_t i = 0; i < layer.inputs.size(); ++i) {
    if (graph.tensors[static_cast<size_t>(layer.inputs[i])].kind != TensorKind::parameter) continue;
    for (const DimRule& dim : layer.input_rules[i])
      for (const int factor : dim) result[static_cast<size_t>(factor)] = true;
  }
  return result;
}

/// Returns the role of each axis in the layer.
std::vector<Role> roles_in(const Graph& graph, const Plan& plan, size_t layer, const LayerFacts& facts) {
  std::vector<Role> roles(static_cast<size_t>(plan.mesh.num_axes()), Role::none);
  const std::vector<bool> of_weights = factors_of_weights(graph, graph.layers[layer]);
  const std::vector<Axes>& axes = plan.layers[layer].factor_axes;
  for (size_t f = 0; f < axes.size(); ++f)
    for (const Axis axis : axes[f])
      roles[static_cast<size_t>(axis)] = static_cast<int>(f) == facts.batch_factor ? Role::batch
                                         : of_weights[f]                           ? Role::weights
                                                                                   : Role::other;
  return roles;
}

/// Number of layers in which an axis has each role.
struct Votes {
  int none = 0, batch = 0, weights = 0, other = 0;

  void add(Role role) {
    ++(role == Role::none ? none : role == Role::batch ? batch : role == Role::weights ? weights : other);
  }
  bool any() const { return batch + weights + other > 0; }
};

/// Multiplies the size that the axis belongs to; false if it belongs to none. `strong`: layers with products.
bool count_axis(int size, const Votes& strong, const Votes& weak, ParallelSizes& sizes) {
  if (!strong.any() && !weak.any()) {
    sizes.replicas *= size;
    return true;
  }
  const bool has_products = strong.any() || strong.none > 0;
  const Votes& votes = has_products ? strong : weak;
  if (votes.batch > 0) {
    sizes.data *= size;
    return votes.weights + votes.other == 0 && (!has_products || votes.none == 0);
  }
  if (weak.batch > 0) return false;
  if (votes.weights > 0) {
    sizes.tensor *= size;
    sizes.sequence_parallel = sizes.sequence_parallel || weak.other > 0;
    return votes.other == 0;
  }
  sizes.context *= size;
  return votes.other > 0 && (!has_products || votes.none == 0);
}

}  // namespace

std::optional<ParallelSizes> parallel_sizes(const Graph& graph, const Plan& plan) {
  ParallelSizes sizes{.pipeline = plan.num_stages};
  if (plan.is_asynchronous()) {
    sizes.data = plan.own_workers;
    return sizes;
  }
  if (plan.mesh.size() == 1) return sizes;
  if (plan.divides_micro_batches()) {
    sizes.data = plan.mesh.size();
    return sizes;
  }
  if (plan.hybrid()) return std::nullopt;
  const std::vector<LayerFacts> facts = sharding_facts(graph);
  const std::vector<bool> has_product = layers_with_products(graph);
  std::vector<Votes> strong(static_cast<size_t>(plan.mesh.num_axes())), weak = strong;
  for (size_t l = 0; l < graph.layers.size(); ++l) {
    if (expert_factor(graph, static_cast<LayerId>(l)) >= 0)
      continue;  // the size of `expert` is reported in addition to these
    const std::vector<Role> roles = roles_in(graph, plan, l, facts[l]);
    for (size_t axis = 0; axis < roles.size(); ++axis) (has_product[l] ? strong : weak)[axis].add(roles[axis]);
  }
  for (size_t axis = 0; axis < strong.size(); ++axis)
    if (!count_axis(plan.mesh.axis_size(static_cast<Axis>(axis)), strong[axis], weak[axis], sizes)) return std::nullopt;
  return sizes;
}

}  // namespace trainctl
