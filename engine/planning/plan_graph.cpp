#include "engine/planning/plan_graph.h"

#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/plan/outdated.h"
#include "engine/planning/context_memory.h"
#include "engine/planning/head_pieces.h"

namespace trainctl {
namespace {

/// Servers save between updates; what workers keep of their own they do not.
void check_saves(const PlannedJob& job) {
  if (!job.plan.is_asynchronous() || !job.spec.train.saves_state()) return;
  for (const Tensor& tensor : job.graph.tensors)
    if (tensor.kind == TensorKind::state)
      throw SpecError(job.spec.position("train.checkpoint"), "train.checkpoint",
                      "each asynchronous worker has its own " + tensor.name + ", which checkpoints do not contain",
                      "set parallel.sync: true, or remove checkpoint");
}

}  // namespace

void plan_graph(PlannedJob& job, PlanMemo& memo) {
  const std::vector<std::string> notes = leave_out_outdated(job.spec, job.graph);
  job.plan = make_plan(job.graph, job.spec, job.cost, memo);
  fit_context_method(job, memo);
  job.plan.notes.insert(job.plan.notes.begin(), notes.begin(), notes.end());
  for (ServedTable& table : job.tables) job.plan.tables.push_back(find_table(job.graph, table));
  check_saves(job);
  choose_head_pieces(job);
}

}  // namespace trainctl
