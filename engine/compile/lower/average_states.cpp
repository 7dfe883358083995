// Averages running statistics that each rank computes from its own rows: in hybrid_parallel, and for batch_norm with
// sync: false. After each
// step their mean over the ranks replaces them, so that validations on all ranks and checkpoints, which one rank
// writes, have the same values.
#include <fmt/format.h>

#include <set>
#include <string>
#include <vector>

#include "engine/compile/lower/averaged_states.h"
#include "engine/compile/lower/lowering.h"
#include "engine/ops/op_def.h"
#include "engine/ops/program_kernels.h"
#include "engine/plan/per_rank.h"

namespace trainctl {

void average(Lowering& l, const std::string& name, const View& states, const std::vector<int>& ranks) {
  Instruction scale = once_per_step(Opcode::kernel, "scale " + name, &elementwise_kernel);
  scale.attrs = {{"expression", fmt::format("x0 scale({},0) =0", 1.0 / static_cast<double>(ranks.size()))}};
  l.c.emit(std::move(scale), {states}, {states});
  all_reduce_numbers(l, "all_reduce " + name, Purpose::statistics, ranks, states);
}

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

std::vector<int> ranks_along(const Lowering& l, const Axes& axes) {
  std::vector<int> ranks = l.c.plan.mesh.group(l.c.rank_in_stage, axes);
  for (int& rank : ranks) rank = l.c.global_rank(l.c.stage, rank);
  return ranks;
}

void average_in_hybrid(Lowering& l) {
  for (size_t i = 0; i < l.c.program.variables.size(); ++i) {
    if (l.c.states[i] < 0) continue;
    const VariablePlan& plan = *l.c.variable_plans[i];
    const std::vector<int> ranks = ranks_in_hybrid(l, plan);
    if (ranks.size() > 1)
      average(l, l.c.program.variables[i].name, {l.c.states[i], l.c.operand(plan.tensor, plan.layout)}, ranks);
  }
}

}  // namespace

std::vector<Axes> axes_of_averaged_states(const Graph& trained, const Plan& plan) {
  std::vector<Axes> axes(trained.tensors.size());
  if (plan.hybrid()) return axes;
  for (const Node& node : trained.nodes) {
    if (!node.attrs.flag(kPerRank)) continue;
    const unsigned updated = get_op(node.op).kernel.updates_input;
    for (size_t i = 0; i < node.inputs.size(); ++i)
      if ((updated >> i & 1u) != 0)
        axes[static_cast<size_t>(node.inputs[i])] = input_layout(trained, plan, node, 0).partial;
  }
  return axes;
}

/// Emits the mean over ranks of states that each rank updates from its own rows, such as running statistics.
void average_states(Lowering& l) {
  if (l.c.plan.hybrid()) {
    if (!l.c.plan.numerics.reads_all_rows) average_in_hybrid(l);
    return;
  }
  const std::vector<Axes> axes = axes_of_averaged_states(l.c.graph, l.c.plan);
  std::set<BufferId> averaged;  // states of several layers share one (lay_out_variables)
  for (size_t i = 0; i < l.c.program.variables.size(); ++i) {
    const BufferId buffer = l.c.states[i];
    if (buffer < 0 || !averaged.insert(buffer).second) continue;
    const std::vector<int> ranks = ranks_along(l, axes[static_cast<size_t>(l.c.variable_plans[i]->tensor)]);
    if (ranks.size() == 1) continue;
    const int64_t elements = l.c.buffers[buffer].bytes / byte_size(DType::f32);
    const bool is_shared = elements > num_elements(l.c.program.variables[i].shape);
    const std::string name = is_shared ? "running statistics" : l.c.program.variables[i].name;
    average(l, name, l.c.flat(buffer, 0, elements, name), ranks);
  }
}

}  // namespace trainctl
