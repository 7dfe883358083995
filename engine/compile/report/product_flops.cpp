// Floating-point operations of matrix products, 2 m k n each, which is how the work of a model is usually stated.
#include "engine/compile/report/product_flops.h"

#include "engine/ops/op_def.h"

namespace trainctl {
namespace {

bool counts(const KernelDef& kernel) { return kernel.is_product || kernel.has_products; }

/// The operations of a kernel's product, which is output 0. Other outputs, such as sums of the product, are not
/// counted.
double flops(const KernelDef& kernel, const std::vector<TensorInfo>& in, std::vector<TensorInfo> out,
             const Attrs& attrs) {
  out.resize(1);
  return kernel_cost(kernel, in, out, attrs).flops;
}

std::vector<TensorInfo> infos_of(const Graph& graph, const std::vector<TensorId>& tensors) {
  std::vector<TensorInfo> infos;
  for (const TensorId t : tensors)
    infos.push_back({graph.tensors[static_cast<size_t>(t)].shape, graph.tensors[static_cast<size_t>(t)].dtype});
  return infos;
}

/// Returns how many times a step runs a node of the graph. In hybrid_parallel the graph describes one rank, so each
/// rank counts.
int runs_per_step(const Plan& plan) { return plan.micro_batches * (plan.hybrid() ? plan.mesh.size() : 1); }

/// Calls each(node, operations) for the products of the graph.
template <class Each>
void each_product(const Graph& graph, const Each& each) {
  for (const Node& node : graph.nodes) {
    const KernelDef& kernel = get_op(node.op).kernel;
    if (counts(kernel))
      each(node, flops(kernel, infos_of(graph, node.inputs), infos_of(graph, node.outputs), node.attrs));
  }
}

}  // namespace

double model_flops(const Graph& graph, const Plan& plan) {
  double sum = 0;
  each_product(graph, [&](const Node&, double flops) { sum += flops; });
  return sum * runs_per_step(plan);
}

std::vector<double> layer_flops(const Graph& graph, const Plan& plan) {
  std::vector<double> sums(graph.layers.size());
  each_product(graph, [&](const Node& node, double flops) {
    sums[static_cast<size_t>(node.layer)] += flops * runs_per_step(plan);
  });
  return sums;
}

double attention_flops(const Graph& graph, const Plan& plan) {
  double sum = 0;
  for (const Node& node : graph.nodes) {
    const KernelDef& kernel = get_op(node.op).kernel;
    if (node.phase != Phase::forward || kernel.is_product || kernel.cost == nullptr) continue;
    const Cost cost = kernel.cost(infos_of(graph, node.inputs), infos_of(graph, node.outputs), node.attrs);
    if (cost.exponentials > 0) sum += cost.flops;  // only attention has them
  }
  return sum * (graph.trains() ? 3 : 1) * runs_per_step(plan);
}

double program_flops(const Program& program) {
  double sum = 0;
  for (const Instruction& i : program.instructions) {
    const KernelDef* kernel = kernel_of(i);
    if (kernel == nullptr || i.idle || !counts(*kernel)) continue;
    sum += flops(*kernel, infos_of(i.inputs), infos_of(i.outputs), i.attrs);
  }
  return sum;
}

}  // namespace trainctl
