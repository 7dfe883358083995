// Writes a choice of the planner into a job, and converts it to text.
#include "engine/search/choices/plan_choice.h"

#include <fmt/format.h>

#include <utility>

#include "engine/base/text.h"

namespace trainctl {

JobSpec with_choice(JobSpec job, const PlanChoice& choice) {
  ParallelSpec& parallel = job.parallel;
  parallel.mode = ParallelMode::semi_auto_parallel;
  parallel.stages = choice.stages;
  parallel.chunks = choice.chunks;
  parallel.schedule = choice.schedule;
  parallel.micro_batches = choice.micro_batches;
  parallel.optimizer_shard.level = choice.optimizer_shard.level;
  parallel.optimizer_shard.within_host = choice.optimizer_shard.within_host;
  parallel.bucket_bytes = choice.bucket_bytes;
  parallel.stage_config = choice.stage_config;
  parallel.strategies = choice.strategies;
  parallel.recompute = choice.recompute;
  return job;
}

std::string to_string(const PlanChoice& choice) {
  std::vector<std::string> parts;
  if (choice.stages > 1) {
    std::string stages = fmt::format("{} stages", choice.stages);
    if (choice.chunks > 1) stages += fmt::format(" of {} chunks", choice.chunks);
    parts.push_back(fmt::format("{}, {}", stages, to_string(choice.schedule)));
  }
  if (choice.micro_batches > 1) parts.push_back(fmt::format("{} micro-batches", choice.micro_batches));
  if (choice.optimizer_shard.level > 0)
    parts.push_back(fmt::format("optimizer_shard {}{}", choice.optimizer_shard.level,
                                choice.optimizer_shard.within_host ? " within a host" : ""));
  if (choice.bucket_bytes > 0) parts.push_back("buckets of " + format_bytes(choice.bucket_bytes));
  if (!choice.recompute.empty()) {
    std::vector<std::string> patterns;
    for (const RecomputeRule& rule : choice.recompute) patterns.push_back(rule.pattern);
    parts.push_back("recompute " + join(patterns));
  }
  return parts.empty() ? "one stage, whole batches" : join(parts);
}

}  // namespace trainctl
