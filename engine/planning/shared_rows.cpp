// Sizes of tensor and context parallelism that a search of plans considers, in which ranks share sequences.
#include "engine/planning/shared_rows.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "engine/planning/trials.h"
#include "engine/search/choices/open_choices.h"
#include "engine/search/choices/plan_choice.h"
#include "engine/search/cuts/repeats.h"

namespace trainctl {
namespace {

constexpr int kBlocks = 3;          ///< blocks of each run of equal blocks in a trial
constexpr int kMostLevel = 3;       ///< highest level of optimizer_shard
constexpr int64_t kMostTensor = 8;  ///< more ranks that share heads exchange too much
/// The number of ranks that share a sample is at most this many times the smallest number that the job permits:
/// kMostSharing if there are fewer samples than ranks, else kMostSharingOfMany.
constexpr int64_t kMostSharing = 4, kMostSharingOfMany = 8;

/// Returns the predicted seconds of a step of the job with all fields fixed, on a network of few blocks; nullopt if the
/// job is not legal.
std::optional<double> seconds_of(const PlannedJob& job, JobSpec spec) {
  if (!spec.positions.contains("parallel.optimizer_shard")) spec.parallel.optimizer_shard.level = 1;
  for (const int blocks : {kBlocks, std::numeric_limits<int>::max()}) {
    Trials trials(job);
    const Trial trial = trials.run(fold(spec, blocks).job, TriedRanks::one_per_stage);
    if (trial.fault.empty()) return trial.seconds;
  }
  return std::nullopt;
}

}  // namespace

bool may_share_rows(const JobSpec& spec) {
  const ParallelSpec& parallel = spec.parallel;
  const bool is_open = !parallel.has_sizes() && parallel.strategies.empty() && parallel.stage_config.empty() &&
                       parallel.search.algorithm == SearchAlgorithm::recursive_programming;
  return is_open && spec.launch.ranks > 1 && spec.servers() == 0 &&
         std::any_of(spec.network.begin(), spec.network.end(),
                     [](const LayerSpec& layer) { return layer.type == "attention"; });
}

JobSpec with_sizes(JobSpec spec, const SharedRows& sizes) {
  spec.parallel.tensor = sizes.tensor;
  spec.parallel.context = sizes.context;
  return spec;
}

TriedPlan smallest_plan(const PlannedJob& job, const JobSpec& sized) {
  const ParallelSpec& given = sized.parallel;
  PlanChoice choice{.stages = given.stages,
                    .chunks = given.chunks,
                    .schedule = given.schedule,
                    .micro_batches = given.micro_batches,
                    .optimizer_shard = {given.optimizer_shard.level, given.optimizer_shard.within_host},
                    .bucket_bytes = given.bucket_bytes,
                    .stage_config = {},
                    .strategies = {},
                    .recompute = given.recompute};
  if (!gives_level(sized)) choice.optimizer_shard.level = kMostLevel;
  if (!sized.positions.contains("parallel.recompute"))
    for (const std::string& prefix : find_repeats(sized).prefixes) choice.recompute.push_back({prefix + "*", ""});
  const int64_t groups = sized.launch.ranks / given.stages / (given.tensor * given.context);
  if (!sized.positions.contains("parallel.micro_batches") && groups > 0 && sized.dataset.batch % groups == 0)
    choice.micro_batches = static_cast<int>(sized.dataset.batch / groups);
  // More micro-batches than fill the pipeline take more time, but no more memory.
  const int few = std::min(choice.micro_batches, 2 * given.stages);
  JobSpec small = with_choice(sized, choice);
  small.dataset.batch = small.dataset.batch / choice.micro_batches * few;
  small.parallel.micro_batches = few;
  TriedPlan plan{to_string(choice), std::move(choice), 0, Trials(job).run(std::move(small), TriedRanks::one_per_stage)};
  plan.trial.scale_time(static_cast<double>(plan.choice.micro_batches) / few);
  return plan;
}

std::vector<std::vector<SharedRows>> sizes_to_search(const PlannedJob& job, const JobSpec& spec) {
  const int64_t ranks = spec.launch.ranks / spec.parallel.stages,
                rows = spec.dataset.batch / spec.parallel.micro_batches;
  const int64_t least = std::max<int64_t>((ranks + rows - 1) / rows, 2);
  const int64_t most = std::min(ranks, rows < ranks ? kMostSharing * least : kMostSharingOfMany);
  const int64_t most_tensor = std::min<int64_t>(kMostTensor, job.cost.machine().devices);
  std::vector<std::vector<SharedRows>> all;
  for (int64_t sharing = least; sharing <= most; ++sharing) {
    if (ranks % sharing != 0) continue;
    std::multimap<double, SharedRows> by_seconds;
    for (int64_t tensor = 1; tensor <= std::min(most_tensor, sharing / 2); ++tensor) {
      if (sharing % tensor != 0) continue;
      const SharedRows sizes{static_cast<int>(tensor), static_cast<int>(sharing / tensor)};
      if (const std::optional<double> seconds = seconds_of(job, with_sizes(spec, sizes)))
        by_seconds.emplace(*seconds, sizes);
    }
    if (by_seconds.empty()) continue;
    std::vector<SharedRows>& alike = all.emplace_back();
    for (const auto& [seconds, sizes] : by_seconds) alike.push_back(sizes);
  }
  return all;
}

}  // namespace trainctl
