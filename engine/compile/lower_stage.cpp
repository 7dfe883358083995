// A stage's tasks as one list of instructions on virtual buffers.
#include "engine/base/error.h"
#include "engine/compile/lowering.h"
#include "engine/compile/passes.h"

namespace trainctl {
namespace {

void lower_task(Lowering& l) {
  start_receiving(l);
  for (size_t n = 0; n < l.c.graph.nodes.size(); ++n) {
    const Node& node = l.c.graph.nodes[n];
    if (node.phase != l.task.phase || l.c.plan.stage_of(node) != l.c.stage) continue;
    lower_node(l, static_cast<NodeId>(n));
    reduce_finished_buckets(l, static_cast<NodeId>(n));
  }
  receive_rest(l);
  forget(l);
}

}  // namespace

void lower_stage(Compiler& c) {
  Lowering l(c);
  start_gradients(l);
  const std::vector<Task> tasks =
      stage_tasks(c.plan.schedule, c.stage, c.plan.num_stages, c.plan.micro_batches, c.trains());
  for (size_t t = 0; t < tasks.size(); ++t) {
    l.task = tasks[t];
    l.last_backward = l.task.phase == Phase::backward;
    for (size_t later = t + 1; later < tasks.size(); ++later) {
      if (tasks[later].phase == Phase::backward) l.last_backward = false;
    }
    lower_task(l);
  }
  finish_step(l);
}

}  // namespace trainctl
