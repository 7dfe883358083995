// Plan -> Program, as a table of contents.
#include "engine/compile/compile.h"

#include "engine/compile/passes.h"
#include "engine/compile/verify_programs.h"

namespace trainctl {

Program compile(const Graph& graph, const Plan& plan, const JobSpec& spec, const CostModel& cost, int rank) {
  Compiler c(graph, plan, spec, cost, rank);
  lay_out_variables(c);
  lower_stage(c);
  gather_ahead(c);
  fuse_loss(c);
  fuse_matmul(c);
  fuse_update(c);
  fuse_bias_grad(c);
  fuse_elementwise(c);
  order_gradients(c);
  make_in_pieces(c);
  update_early(c);
  group_launches(c);
  order_sends(c);
  reuse_buffers(c);
  place_buffers(c);
  order_streams(c);
  return std::move(c.program);
}

std::vector<Program> compile_all(const Graph& graph, const Plan& plan, const JobSpec& spec, const CostModel& cost) {
  std::vector<Program> programs;
  programs.reserve(plan.ranks);
  for (int rank = 0; rank < plan.ranks; ++rank) programs.push_back(compile(graph, plan, spec, cost, rank));
  RankClasses classes = each_by_itself(std::move(programs));
  require_verified(classes);
  return std::move(classes.programs);
}

}  // namespace trainctl
