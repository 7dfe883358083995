// Lowers the tasks of a stage, in the order of the schedule, to one list of instructions on virtual buffers.
#include <map>
#include <utility>

#include "engine/base/error.h"
#include "engine/compile/lower/lowering.h"
#include "engine/compile/passes.h"

namespace trainctl {
namespace {

void lower_task(Lowering& l) {
  for (size_t n = 0; n < l.c.graph.nodes.size(); ++n) {
    const Node& node = l.c.graph.nodes[n];
    if (l.tasks_of_nodes[n] != l.task.kind || l.c.plan.virtual_stage_of(node) != l.virtual_stage()) continue;
    lower_node(l, static_cast<NodeId>(n));
    reduce_finished_buckets(l, static_cast<NodeId>(n));
  }
  receive_rest(l);
  forget(l);
}

}  // namespace

void lower_stage(Compiler& c) {
  Lowering l(c);
  if (c.is_server()) return lower_server(l);
  if (c.exchanges_averages) return exchange_averages(l);
  start_gradients(l);
  const std::vector<Task> tasks = stage_tasks(c.plan.pipeline(c.trains()), c.stage);
  std::map<std::pair<TaskKind, int>, size_t> last;  // by kind and chunk
  for (size_t t = 0; t < tasks.size(); ++t) last[{tasks[t].kind, tasks[t].chunk}] = t;
  for (size_t t = 0; t < tasks.size(); ++t) {
    l.task = tasks[t];
    l.last_of_kind = last[{tasks[t].kind, tasks[t].chunk}] == t;
    lower_task(l);
  }
  finish_step(l);
}

}  // namespace trainctl
