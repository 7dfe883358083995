// Selects the optimizer that updates a parameter: the job's own, or its companion (OptimizerDef::companion).
#include "engine/compile/parameter_optimizer.h"

#include <algorithm>

#include "engine/ops/op_def.h"

namespace trainctl {
namespace {

bool is_read_by_products_alone(const Graph& graph, TensorId parameter) {
  bool is_read = false;
  for (const Node& node : graph.nodes) {
    if (std::find(node.inputs.begin(), node.inputs.end(), parameter) == node.inputs.end()) continue;
    if (!get_op(node.op).kernel.is_product) return false;
    is_read = true;
  }
  return is_read;
}

}  // namespace

bool uses_companion(const Graph& graph, const OptimizerSpec& spec, TensorId parameter, int group) {
  const OptimizerDef& def = get_optimizer(spec.type);
  if (def.companion == nullptr) return false;
  const Optimizer optimizer(def, spec.settings_of(group));
  const Shape& shape = graph.tensors[static_cast<size_t>(parameter)].shape;
  return !def.suits(optimizer.settings, shape, is_read_by_products_alone(graph, parameter));
}

Optimizer optimizer_of(const OptimizerSpec& spec, int group, bool companion) {
  const OptimizerDef& def = get_optimizer(spec.type);
  return {companion ? *def.companion : def, spec.settings_of(group)};
}

}  // namespace trainctl
