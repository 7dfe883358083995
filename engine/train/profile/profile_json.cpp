// profile.json of a run's folder: what `trainctl run --profile` prints, as data.
#include "engine/train/profile/profile_json.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace trainctl {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMostInstructions = 40;

Json ranks_json(const ProfileSummary& summary) {
  Json rows = Json::array();
  for (const RankShares& r : summary.ranks)
    rows.push_back({{"rank", r.rank},
                    {"seconds", r.seconds},
                    {"compute", r.compute},
                    {"communication", r.exposed},
                    {"waiting", r.waiting},
                    {"idle", r.idle},
                    {"moving_seconds", r.moving_seconds},
                    {"hidden_seconds", r.hidden_seconds},
                    {"moved_bytes", r.moved_bytes},
                    {"hidden_bytes", r.hidden_bytes}});
  return rows;
}

Json instructions_json(const ProfileSummary& summary) {
  Json rows = Json::array();
  const size_t count = std::min(kMostInstructions, summary.instructions.size());
  for (const InstructionTotal& t : std::span(summary.instructions).first(count))
    rows.push_back({{"name", t.name},
                    {"op", t.op},
                    {"recompute", t.recompute},
                    {"calls", t.calls},
                    {"seconds", t.seconds},
                    {"waited_seconds", t.waited_seconds},
                    {"flops", t.flops},
                    {"bytes", t.bytes}});
  return rows;
}

Json parts_json(std::span<const StepComponent> parts) {
  Json rows = Json::array();
  for (const StepComponent& part : parts)
    rows.push_back({{"name", part.name},
                    {"seconds", part.seconds},
                    {"limit_seconds", part.limit_seconds},
                    {"launches", part.launches}});
  return rows;
}

Json tasks_json(std::span<const RankTasks> tasks) {
  Json rows = Json::array();
  for (const RankTasks& of_rank : tasks) {
    Json names = Json::array(), starts = Json::array(), ends = Json::array();
    for (const RanTask& task : of_rank.tasks) {
      names.push_back(task.name);
      starts.push_back(task.begin);
      ends.push_back(task.end);
    }
    rows.push_back(
        {{"rank", of_rank.rank}, {"stage", of_rank.stage}, {"tasks", names}, {"starts", starts}, {"ends", ends}});
  }
  return rows;
}

}  // namespace

Json profile_json(const ProfileSummary& summary, std::span<const StepComponent> parts, std::span<const RankTasks> tasks,
                  const Machine& machine) {
  return {{"steps", to_string(summary.steps)},
          {"step_seconds", summary.step_seconds},
          {"ranks", ranks_json(summary)},
          {"instructions", instructions_json(summary)},
          {"machine", machine.name + " (" + machine.source + ")"},
          {"parts", parts_json(parts)},
          {"tasks", tasks_json(tasks)}};
}

}  // namespace trainctl
