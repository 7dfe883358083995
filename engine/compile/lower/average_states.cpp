// Running statistics of a rank's own rows: those of hybrid_parallel, and of batch_norm with sync: false. After each step
// their mean over the ranks replaces them, so that validations on all ranks and checkpoints, which one rank writes, have
// the same values.
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "engine/compile/lower/lowering.h"
#include "engine/ops/op_def.h"
#include "engine/ops/program_kernels.h"
#include "engine/plan/per_rank.h"

namespace trainctl {
namespace {

/// The ranks that have their own values of a state: those of all replicas in hybrid_parallel.
std::vector<int> ranks_in_hybrid(const Lowering& l, const VariablePlan& plan) {
  const Mesh& mesh = l.c.plan.mesh;
  std::vector<int> ranks;
  for (const int stage : plan.stages)
    for (const int r : mesh.group(l.c.rank_in_stage, plan.layout.replica_axes(mesh)))
      ranks.push_back(l.c.global_rank(stage, r));
  return ranks;
}

/// By tensor: the axes over which the states that nodes with kPerRank update differ.
std::vector<Axes> axes_of_states(const Graph& graph, const Plan& plan) {
  std::vector<Axes> axes(graph.tensors.size());
  for (const Node& node : graph.nodes) {
    if (!node.attrs.flag(kPerRank)) continue;
    const unsigned updated = get_op(node.op).kernel.updates_input;
    for (size_t i = 0; i < node.inputs.size(); ++i)
      if ((updated >> i & 1u) != 0) axes[static_cast<size_t>(node.inputs[i])] = input_layout(graph, plan, node, 0).partial;
  }
  return axes;
}

std::vector<int> ranks_along(const Lowering& l, const Axes& axes) {
  std::vector<int> ranks = l.c.plan.mesh.group(l.c.rank_in_stage, axes);
  for (int& rank : ranks) rank = l.c.global_rank(l.c.stage, rank);
  return ranks;
}

void average(Lowering& l, size_t variable, const std::vector<int>& ranks) {
  const VariablePlan& plan = *l.c.variable_plans[variable];
  const std::string& name = l.c.program.variables[variable].name;
  const View state{l.c.states[variable], l.c.operand(plan.tensor, plan.layout)};
  Instruction scale = once_per_step(Opcode::kernel, "scale " + name, &elementwise_kernel);
  scale.attrs = {{"expression", fmt::format("x0 scale({},0) =0", 1.0 / static_cast<double>(ranks.size()))}};
  l.c.emit(std::move(scale), {state}, {state});
  all_reduce_numbers(l, "all_reduce " + name, Purpose::statistics, ranks, state);
}

}  // namespace

void average_states(Lowering& l) {
  const bool hybrid = l.c.plan.hybrid();
  if (hybrid && l.c.plan.numerics.reads_all_rows) return;
  const std::vector<Axes> axes = hybrid ? std::vector<Axes>() : axes_of_states(l.c.graph, l.c.plan);
  for (size_t i = 0; i < l.c.program.variables.size(); ++i) {
    if (l.c.states[i] < 0) continue;
    const VariablePlan& plan = *l.c.variable_plans[i];
    const std::vector<int> ranks =
        hybrid ? ranks_in_hybrid(l, plan) : ranks_along(l, axes[static_cast<size_t>(plan.tensor)]);
    if (ranks.size() > 1) average(l, i, ranks);
  }
}

}  // namespace trainctl
