// A stage's tasks as one list of instructions on virtual buffers.
#include <algorithm>

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
  const auto last =
      std::find_if(tasks.rbegin(), tasks.rend(), [](const Task& t) { return t.phase == Phase::backward; });
  for (const Task& task : tasks) {
    l.task = task;
    l.last_backward = last != tasks.rend() && &task == &*last;
    lower_task(l);
  }
  finish_step(l);
}

}  // namespace trainctl
