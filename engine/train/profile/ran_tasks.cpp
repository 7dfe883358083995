// Finds when the tasks of the schedule ran in a profiled step.
#include "engine/train/profile/ran_tasks.h"

#include <algorithm>
#include <set>

#include "engine/plan/plan.h"

namespace trainctl {
namespace {

const Instruction& instruction_of(const RankProfile& profile, const TimeSpan& span) {
  return profile.program->instructions[static_cast<size_t>(span.instruction)];
}

bool is_of_task(const Instruction& i) { return i.opcode == Opcode::kernel && i.micro_batch >= 0; }

Task task_of(const Instruction& i) {
  const bool is_forward = i.phase == Phase::forward && !i.recompute;
  const TaskKind kind = i.weight_gradients ? TaskKind::weight_gradients
                        : is_forward       ? TaskKind::forward
                                           : TaskKind::backward;
  return {kind, i.micro_batch, i.chunk};
}

/// The last step of every profile; -1: there is none.
int64_t last_common_step(std::span<const RankProfile> profiles) {
  std::set<int64_t> common;
  for (size_t p = 0; p < profiles.size(); ++p) {
    std::set<int64_t> steps;
    for (const TimeSpan& span : profiles[p].spans) steps.insert(span.step);
    if (p == 0) common = steps;
    std::erase_if(common, [&](int64_t step) { return !steps.contains(step); });
  }
  return common.empty() ? -1 : *common.rbegin();
}

struct Stretch {
  Task task;
  int64_t begin_ns, end_ns;
};

std::vector<Stretch> stretches_of(const RankProfile& profile, int64_t step) {
  std::vector<TimeSpan> spans;
  for (const TimeSpan& span : profile.spans)
    if (span.step == step && is_of_task(instruction_of(profile, span))) spans.push_back(span);
  std::sort(spans.begin(), spans.end(), [](const TimeSpan& a, const TimeSpan& b) { return a.begin_ns < b.begin_ns; });
  std::vector<Stretch> stretches;
  for (const TimeSpan& span : spans) {
    const Task task = task_of(instruction_of(profile, span));
    if (stretches.empty() || !(stretches.back().task == task))
      stretches.push_back({task, span.begin_ns, span.end_ns});
    else
      stretches.back().end_ns = std::max(stretches.back().end_ns, span.end_ns);
  }
  return stretches;
}

}  // namespace

std::vector<RankTasks> ran_tasks(std::span<const RankProfile> profiles) {
  const int64_t step = last_common_step(profiles);
  if (step < 0) return {};
  std::vector<RankTasks> all;
  std::vector<std::vector<Stretch>> stretches;
  std::set<int> stages;
  int64_t origin = INT64_MAX;
  for (const RankProfile& profile : profiles) {
    if (profile.program->server >= 0 || !stages.insert(profile.program->stage).second) continue;
    all.push_back({profile.program->rank, profile.program->stage, {}});
    stretches.push_back(stretches_of(profile, step));
    if (!stretches.back().empty()) origin = std::min(origin, stretches.back().front().begin_ns);
  }
  const auto seconds = [&](int64_t ns) { return static_cast<double>(ns - origin) / 1e9; };
  for (size_t r = 0; r < all.size(); ++r) {
    const int chunks = profiles.front().program->chunks;
    for (const Stretch& s : stretches[r])
      all[r].tasks.push_back({to_string(s.task, chunks), seconds(s.begin_ns), seconds(s.end_ns)});
  }
  return all;
}

}  // namespace trainctl
