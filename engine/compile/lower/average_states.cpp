// hybrid_parallel: the running statistics of a rank are those of its own rows. After each step their mean over the
// ranks replaces them, so that validations on all ranks and checkpoints, which one rank writes, have the same values.
#include <fmt/format.h>

#include "engine/compile/lower/lowering.h"
#include "engine/ops/program_kernels.h"

namespace trainctl {

void average_states(Lowering& l) {
  if (!l.c.plan.hybrid() || l.c.plan.numerics.reads_all_rows) return;
  const Mesh& mesh = l.c.plan.mesh;
  for (size_t i = 0; i < l.c.program.variables.size(); ++i) {
    if (l.c.states[i] < 0) continue;
    const VariablePlan& plan = *l.c.variable_plans[i];
    std::vector<int> ranks;
    for (const int stage : plan.stages)
      for (const int r : mesh.group(l.c.rank_in_stage, plan.layout.replica_axes(mesh)))
        ranks.push_back(stage * mesh.size() + r);
    if (ranks.size() == 1) continue;
    const std::string& name = l.c.program.variables[i].name;
    const View state{l.c.states[i], l.c.operand(plan.tensor, plan.layout)};
    Instruction scale = once_per_step(Opcode::kernel, "scale " + name, &elementwise_kernel);
    scale.attrs = {{"expression", fmt::format("x0 scale({},0) =0", 1.0 / static_cast<double>(ranks.size()))}};
    l.c.emit(std::move(scale), {state}, {state});
    all_reduce_numbers(l, "all_reduce " + name, Purpose::statistics, ranks, state);
  }
}

}  // namespace trainctl
