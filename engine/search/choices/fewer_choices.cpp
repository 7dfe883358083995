// Fixes the number of stages and the level of optimizer_shard.
#include "engine/search/choices/fewer_choices.h"

#include <string>
#include <utility>

#include "engine/search/choices/open_choices.h"

namespace trainctl {
namespace {

constexpr const char* kStages = "parallel.stages";
constexpr const char* kShard = "parallel.optimizer_shard";

/// Marks the field as given by the user, so that the search does not vary it (OpenChoices).
void mark_as_given(JobSpec& job, const std::string& field) { job.positions[field] = job.position(field); }

JobSpec with_one_stage(JobSpec job) {
  job.parallel.stages = 1;
  mark_as_given(job, kStages);
  return job;
}

JobSpec with_level(JobSpec job, int level) {
  job.parallel.optimizer_shard.level = level;
  const bool has_fields = job.positions.contains(kShard);
  mark_as_given(job, has_fields ? std::string(kShard) + ".level" : kShard);
  return job;
}

}  // namespace

std::vector<JobSpec> with_fewer_choices(const JobSpec& job) {
  const SearchSpec& search = job.parallel.search;
  if (search.effort == Effort::low || search.algorithm != SearchAlgorithm::recursive_programming) return {};
  std::vector<JobSpec> all;
  for (int level = gives_level(job) ? 0 : 3; level > 0; --level) {
    if (!gives_stages(job)) all.push_back(with_level(with_one_stage(job), level));
    all.push_back(with_level(job, level));
  }
  if (!gives_stages(job)) all.push_back(with_one_stage(job));
  return all;
}

bool belongs_to(const PlanChoice& choice, const JobSpec& variant) {
  const int level = choice.optimizer_shard.level;
  return (gives_stages(variant) ? choice.stages == variant.parallel.stages : choice.stages > 1) &&
         (gives_level(variant) ? level == variant.parallel.optimizer_shard.level : level == 0);
}

}  // namespace trainctl
