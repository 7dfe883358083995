// The order of a stage's forward and backward tasks.
#include <algorithm>

#include "engine/base/error.h"
#include "engine/plan/plan.h"

namespace trainctl {

std::vector<Task> stage_tasks(Schedule schedule, int stage, int num_stages, int micro_batches, bool with_backward) {
  check(stage >= 0 && stage < num_stages && micro_batches >= 1, "the stage of the schedule exists");
  // Forwards that run before the first backward. 1f1b holds no more micro-batches than are needed to keep the
  // following stages busy.
  const bool all_first = !with_backward || schedule == Schedule::gpipe;
  const int warm_up = all_first ? micro_batches : std::min(micro_batches, num_stages - stage - 1);
  std::vector<Task> tasks;
  for (int m = 0; m < warm_up; ++m) tasks.push_back({Phase::forward, m});
  for (int m = warm_up; m < micro_batches; ++m) {
    tasks.push_back({Phase::forward, m});
    tasks.push_back({Phase::backward, m - warm_up});
  }
  if (!with_backward) return tasks;
  for (int m = micro_batches - warm_up; m < micro_batches; ++m) tasks.push_back({Phase::backward, m});
  return tasks;
}

}  // namespace trainctl
