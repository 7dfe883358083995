// Lowers the tasks of a stage, in the order of the schedule, to one list of instructions on virtual buffers.
#include <algorithm>
#include <map>
#include <utility>

#include "engine/base/error.h"
#include "engine/compile/lower/lowering.h"
#include "engine/compile/passes.h"
#include "engine/plan/token_exchange.h"

namespace trainctl {
namespace {

/// Lowers the nodes of a task. Those that exchange tokens begin as early as possible, and a forward one ends only where
/// its results are needed, so that other nodes, such as a shared expert, run during the exchange.
class TaskLowering {
 public:
  explicit TaskLowering(Lowering& l) : l_(l) {}

  /// Emits the instructions of the task's nodes. An exchange of tokens in the forward pass ends before the next
  /// exchange or the first node that reads its results, so that the kernels in between overlap it.
  void lower() {
    for (size_t n = 0; n < l_.c.graph.nodes.size(); ++n) {
      const Node& node = l_.c.graph.nodes[n];
      if (node.phase == Phase::backward && is_in_task(n) && exchanges(n) && !l_.c.plan.layers[node.layer].recompute)
        gradients_.push_back(static_cast<NodeId>(n));
    }
    for (size_t n = 0; n < l_.c.graph.nodes.size(); ++n) {
      if (!is_in_task(n)) continue;
      const auto id = static_cast<NodeId>(n);
      if (begun_ >= 0 && (exchanges(n) || reads_results(n))) end();
      if (exchanges(n) && l_.c.graph.nodes[n].phase == Phase::forward) {
        begin(id);
        begun_ = id;
        continue;
      }
      lower(id);
      begin_gradients(id);
    }
    if (begun_ >= 0) end();
    receive_rest(l_);
    forget(l_);
  }

 private:
  bool is_in_task(size_t n) const {
    return l_.tasks_of_nodes[n] == l_.task.kind &&
           l_.c.plan.virtual_stage_of(l_.c.graph.nodes[n]) == l_.virtual_stage();
  }
  bool exchanges(size_t n) const { return !token_exchange_axes(l_.c.graph, l_.c.plan, l_.c.graph.nodes[n]).empty(); }
  bool reads_results(size_t n) const {
    const std::vector<TensorId>&inputs = l_.c.graph.nodes[n].inputs,
          &results = l_.c.graph.nodes[static_cast<size_t>(begun_)].outputs;
    return std::find_first_of(inputs.begin(), inputs.end(), results.begin(), results.end()) != inputs.end();
  }

  void lower(NodeId id) {
    lower_node(l_, id);
    reduce_finished_buckets(l_, id);
  }
  void begin(NodeId id) {
    begin_token_exchange(l_, id);
    l_.begun_exchanges.insert(id);
  }
  void end() { lower(std::exchange(begun_, -1)); }

  /// Sends the gradient that this node makes to the experts whose output it belongs to, before their own node. A layer
  /// that is recomputed first sends its tokens, in its node.
  void begin_gradients(NodeId made_by) {
    for (const NodeId gradient : gradients_) {
      const TensorId dy = l_.c.graph.nodes[static_cast<size_t>(gradient)].inputs[0];
      if (l_.c.graph.tensors[static_cast<size_t>(dy)].producer == made_by) begin(gradient);
    }
  }

  Lowering& l_;
  NodeId begun_ = -1;                ///< a forward node that has begun; -1: none
  std::vector<NodeId> gradients_{};  ///< gradients in this task that may begin early
};

std::vector<Task> tasks_of_rank(const Compiler& c) {
  Pipeline pipeline = c.plan.pipeline(c.trains());
  if (!c.plan.divides_micro_batches()) return stage_tasks(pipeline, c.stage);
  check(pipeline.stages == 1, "ranks of a pipeline have the same micro-batches");
  pipeline.micro_batches = c.plan.rank_micro_batches.at(static_cast<size_t>(c.rank_in_stage));
  std::vector<Task> tasks = stage_tasks(pipeline, c.stage);
  for (Task& task : tasks) task.micro_batch += c.plan.first_micro_batch(c.rank_in_stage);
  return tasks;
}

}  // namespace

void lower_stage(Compiler& c) {
  Lowering l(c);
  if (c.is_server()) return lower_server(l);
  if (c.only == EvaluationOf::Only::exchange) return exchange_averages(l);
  if (c.only == EvaluationOf::Only::synchronize) return synchronize_replicas(l);
  start_gradients(l);
  const std::vector<Task> tasks = tasks_of_rank(c);
  std::map<std::pair<TaskKind, int>, size_t> last;  // by kind and chunk
  for (size_t t = 0; t < tasks.size(); ++t) last[{tasks[t].kind, tasks[t].chunk}] = t;
  for (size_t t = 0; t < tasks.size(); ++t) {
    l.task = tasks[t];
    l.last_of_kind = last[{tasks[t].kind, tasks[t].chunk}] == t;
    TaskLowering(l).lower();
  }
  finish_step(l);
}

}  // namespace trainctl
