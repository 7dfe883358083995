// Decides when a save is due, and which checkpoint is the best one (train.checkpoint).
#include "engine/train/checkpoint/save_policy.h"

#include <algorithm>
#include <cmath>

#include "engine/base/checked.h"

namespace trainctl {
namespace {

/// True if a multiple of `every` is in (last, step]. The initial weights count as saved.
bool has_passed(int64_t every, int64_t step, int64_t last) {
  return every > 0 && step / every * every > std::max<int64_t>(last, 0);
}

}  // namespace

double automatic_interval(double cost, double run_seconds, int failures) {
  constexpr double kDay = 86400, kLeast = 10, kMost = 3600, kUnknownCost = 0.5;
  const double between = (run_seconds + kDay) / (failures + 1);
  return std::clamp(std::sqrt(2 * (cost > 0 ? cost : kUnknownCost) * between), kLeast, kMost);
}

bool is_save_due(const CheckpointSpec& spec, int64_t steps_per_epoch, const SaveMoment& now) {
  if (has_passed(spec.every_steps, now.step, now.last)) return true;
  if (spec.every_epochs > 0 && has_passed(capped_product(spec.every_epochs, steps_per_epoch), now.step, now.last))
    return true;
  if (spec.every_minutes > 0 && now.seconds >= 60 * spec.every_minutes) return true;
  return spec.is_automatic() && now.seconds >= automatic_interval(now.cost, now.run_seconds, now.failures);
}

std::optional<int64_t> best_step(const std::vector<CheckpointEntry>& entries, const std::string& metric) {
  std::optional<int64_t> step;
  double best = 0;
  for (const CheckpointEntry& entry : entries) {  // the newest first
    if (!entry.complete()) continue;
    for (const auto& [name, value] : entry.manifest.metrics) {
      if (name != metric || std::isnan(value) || (step && !is_better(metric, value, best))) continue;
      step = entry.step;
      best = value;
    }
  }
  return step;
}

}  // namespace trainctl
