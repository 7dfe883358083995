// The order of a stage's tasks, and how long it leaves stages without work.
#include <algorithm>

#include "engine/base/error.h"
#include "engine/plan/plan.h"

namespace trainctl {
namespace {

/// Returns the number of forward tasks that a stage runs before its first backward task.
int warm_up(const Pipeline& p, int stage) {
  const int all = p.micro_batches * p.chunks, following = p.stages - stage - 1;
  if (p.schedule == Schedule::gpipe) return all;
  // A stage needs one forward task for each following stage, to keep all of them busy. With chunks, the forward of the
  // last chunk comes after the forwards of all other chunks for the first group of micro-batches. The distance to each
  // following stage also counts twice, once in the forward and once in the backward direction.
  if (p.chunks == 1) return std::min(all, following);
  return std::min(all, 2 * following + (p.chunks - 1) * p.stages);
}

/// Chunks take turns. Micro-batches go in groups of one for each stage: when the last of a group has left the first
/// stage, the first has come through all stages, and its next chunk may begin.
///
///   stage 0 of 2, 2 chunks, 4 micro-batches:   0.0 1.0 0.1 1.1 2.0 3.0 2.1 3.1
Task turn(const Pipeline& p, TaskKind kind, int number) {
  const int group = number / (p.stages * p.chunks), first = group * p.stages;
  const int size = std::min(p.stages, p.micro_batches - first);  // the last group of forward-only jobs may be smaller
  const int in_group = number - first * p.chunks;
  const int chunk = in_group / size;
  return {kind, first + in_group % size, kind == TaskKind::forward ? chunk : p.chunks - 1 - chunk};
}

// ZB-H1 of "Zero Bubble Pipeline Parallelism" (Qi and others, ICLR 2024): 1f1b whose backward tasks leave the weight
// gradients to later tasks. Input gradients then pass through the stages twice as fast, and weight gradients fill what
// would be idle at the end. Stage s is s micro-batches late with them, so that every stage has as many micro-batches
// in memory as stage 0 of 1f1b, and no more.
void add_weight_gradients(int stage, std::vector<Task>& tasks) {
  std::vector<Task> all;
  int backwards = 0, done = 0;
  for (const Task& task : tasks) {
    all.push_back(task);
    if (task.kind != TaskKind::backward) continue;
    if (++backwards > stage) all.push_back({TaskKind::weight_gradients, done++});
  }
  while (done < backwards) all.push_back({TaskKind::weight_gradients, done++});
  tasks = std::move(all);
}

int units(const Pipeline& pipeline, TaskKind kind) {
  return kind == TaskKind::backward && !pipeline.splits_backward() ? 2 : 1;
}

/// Runs the tasks of all stages together: each starts when its stage is free and its input has arrived.
class Run {
 public:
  explicit Run(const Pipeline& pipeline) : p_(pipeline), starts_(p_.stages), ends_(p_.stages) {
    for (int s = 0; s < p_.stages; ++s) tasks_.push_back(stage_tasks(p_, s));
    for (auto* of : {&forward_, &backward_})
      of->assign(static_cast<size_t>(p_.stages * p_.chunks * p_.micro_batches), -1);
  }

  TaskTimes times() {
    size_t left = 0;
    for (const std::vector<Task>& of_stage : tasks_) left += of_stage.size();
    for (bool moved = true; moved;) {
      moved = false;
      for (int s = 0; s < p_.stages; ++s)
        while (advance(s)) moved = true, --left;
    }
    check(left == 0, "every task of a schedule gets its input");
    TaskTimes all{std::move(starts_), std::move(ends_), 0};
    for (const std::vector<int>& ends : all.ends) all.length = std::max(all.length, ends.empty() ? 0 : ends.back());
    return all;
  }

 private:
  int& end(const Task& task, int virtual_stage) {
    std::vector<int>& of_kind = task.kind == TaskKind::forward ? forward_ : backward_;
    return of_kind[static_cast<size_t>(virtual_stage * p_.micro_batches + task.micro_batch)];
  }

  /// Runs the stage's next task, if its input has arrived.
  bool advance(int stage) {
    const size_t next = starts_[stage].size();
    if (next == tasks_[stage].size()) return false;
    const Task& task = tasks_[stage][next];
    const int at = task.chunk * p_.stages + stage, from = task.kind == TaskKind::forward ? at - 1 : at + 1;
    int start = ends_[stage].empty() ? 0 : ends_[stage].back();
    if (task.kind != TaskKind::weight_gradients && from >= 0 && from < p_.stages * p_.chunks) {
      if (end(task, from) < 0) return false;
      start = std::max(start, end(task, from));
    }
    starts_[stage].push_back(start);
    ends_[stage].push_back(start + units(p_, task.kind));
    if (task.kind != TaskKind::weight_gradients) end(task, at) = ends_[stage].back();
    return true;
  }

  const Pipeline p_;
  std::vector<std::vector<Task>> tasks_;
  std::vector<std::vector<int>> starts_, ends_;
  std::vector<int> forward_, backward_;  ///< by virtual stage and micro-batch: when the task ends; -1: not yet
};

}  // namespace

std::vector<Task> stage_tasks(const Pipeline& p, int stage) {
  check(stage >= 0 && stage < p.stages && p.micro_batches >= 1 && p.chunks >= 1, "the stage of the schedule exists");
  const int all = p.micro_batches * p.chunks, first = p.with_backward ? warm_up(p, stage) : all;
  std::vector<Task> tasks;
  for (int n = 0; n < first; ++n) tasks.push_back(turn(p, TaskKind::forward, n));
  for (int n = first; n < all; ++n) {
    tasks.push_back(turn(p, TaskKind::forward, n));
    tasks.push_back(turn(p, TaskKind::backward, n - first));
  }
  if (!p.with_backward) return tasks;
  for (int n = all - first; n < all; ++n) tasks.push_back(turn(p, TaskKind::backward, n));
  if (p.splits_backward()) add_weight_gradients(stage, tasks);
  return tasks;
}

std::string to_string(const Task& task, int chunks) {
  const char* kind = task.kind == TaskKind::forward ? "F" : task.kind == TaskKind::backward ? "B" : "W";
  return kind + std::to_string(task.micro_batch) + (chunks == 1 ? "" : "." + std::to_string(task.chunk));
}

TaskTimes task_times(const Pipeline& pipeline) { return Run(pipeline).times(); }

double TaskTimes::bubble() const {
  int64_t busy = 0;
  for (size_t s = 0; s < starts.size(); ++s)
    for (size_t t = 0; t < starts[s].size(); ++t) busy += ends[s][t] - starts[s][t];
  return 1 - static_cast<double>(busy) / (static_cast<double>(length) * static_cast<double>(starts.size()));
}

}  // namespace trainctl
