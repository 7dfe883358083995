// Sizes of tensor and context parallelism that a search of plans considers, in which ranks share sequences.
#include "engine/planning/shared_rows.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "engine/planning/trials.h"
#include "engine/search/cuts/repeats.h"

namespace trainctl {
namespace {

constexpr int kBlocks = 3;          ///< blocks of each run of equal blocks in a trial
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

std::vector<SharedRows> sizes_to_search(const PlannedJob& job, const JobSpec& spec) {
  const int64_t ranks = spec.launch.ranks / spec.parallel.stages,
                rows = spec.dataset.batch / spec.parallel.micro_batches;
  const int64_t least = std::max<int64_t>((ranks + rows - 1) / rows, 2);
  const int64_t most = std::min(ranks, rows < ranks ? kMostSharing * least : kMostSharingOfMany);
  const int64_t most_tensor = std::min<int64_t>(kMostTensor, job.cost.machine().devices);
  std::map<int64_t, std::pair<double, SharedRows>> best;  // by the ranks that share a sample
  for (int64_t sharing = least; sharing <= most; ++sharing) {
    if (ranks % sharing != 0) continue;
    for (int64_t tensor = 1; tensor <= std::min(most_tensor, sharing / 2); ++tensor) {
      if (sharing % tensor != 0) continue;
      const SharedRows sizes{static_cast<int>(tensor), static_cast<int>(sharing / tensor)};
      const std::optional<double> seconds = seconds_of(job, with_sizes(spec, sizes));
      if (!seconds) continue;
      const auto [known, is_new] = best.try_emplace(sharing, *seconds, sizes);
      if (!is_new && *seconds < known->second.first) known->second = {*seconds, sizes};
    }
  }
  std::vector<SharedRows> all;
  for (const auto& [sharing, sizes] : best) all.push_back(sizes.second);
  return all;
}

}  // namespace trainctl
