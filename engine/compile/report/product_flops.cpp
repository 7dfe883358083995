// See the header.
#include "engine/compile/report/product_flops.h"

#include "engine/ops/op_def.h"

namespace trainctl {
namespace {

/// Output 0 is the product; others are made of it, or by the way.
double flops(const KernelDef& kernel, const std::vector<TensorInfo>& in, std::vector<TensorInfo> out,
             const Attrs& attrs) {
  out.resize(1);
  return kernel_cost(kernel, in, out, attrs).flops;
}

}  // namespace

double model_flops(const Graph& graph, const Plan& plan) {
  double sum = 0;
  const auto info = [&](TensorId t) { return TensorInfo{graph.tensors[t].shape, graph.tensors[t].dtype}; };
  for (const Node& node : graph.nodes) {
    const KernelDef& kernel = get_op(node.op).kernel;
    if (!kernel.is_product) continue;
    std::vector<TensorInfo> in, out;
    for (TensorId t : node.inputs) in.push_back(info(t));
    for (TensorId t : node.outputs) out.push_back(info(t));
    sum += flops(kernel, in, std::move(out), node.attrs);
  }
  const int alike = plan.hybrid() ? plan.mesh.size() : 1;  // hybrid_parallel: the graph is that of one rank
  return sum * plan.micro_batches * alike;
}

double program_flops(const Program& program) {
  double sum = 0;
  for (const Instruction& i : program.instructions) {
    const KernelDef* kernel = kernel_of(i);
    if (kernel == nullptr || !kernel->is_product) continue;
    std::vector<TensorInfo> in, out;
    for (const Operand& operand : i.inputs) in.push_back({operand.shape, operand.dtype});
    for (const Operand& operand : i.outputs) out.push_back({operand.shape, operand.dtype});
    sum += flops(*kernel, in, std::move(out), i.attrs);
  }
  return sum;
}

}  // namespace trainctl
