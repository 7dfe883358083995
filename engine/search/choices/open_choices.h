// Choices that a job leaves open, and so a search may make.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "engine/search/choices/plan_choice.h"
#include "engine/search/networks.h"

namespace trainctl {

/// A way to recompute: nothing; norms, activations and sums; these and the inputs of attention; these and attention;
/// whole blocks.
using Recompute = std::vector<RecomputeRule>;

/// The ways to recompute that a search tries, from nothing to whole blocks. Only layers of repeated blocks.
std::vector<Recompute> recompute_ways(const JobSpec& job, Networks& networks);

/// True if the job gives the number of stages, or the level of optimizer_shard.
bool gives_stages(const JobSpec& job);
bool gives_level(const JobSpec& job);

class OpenChoices {
 public:
  /// Adds to `notes` why a choice that could be open is not.
  OpenChoices(const JobSpec& job, Networks& networks, const Machine& machine, std::vector<std::string>& notes);

  const std::vector<int>& stage_counts() const { return stage_counts_; }
  const std::vector<int>& micro_batch_counts() const { return micro_batch_counts_; }
  const std::vector<Recompute>& recompute_ways() const { return recompute_ways_; }
  /// Schedules, each with its number of chunks per stage.
  std::vector<std::pair<Schedule, int>> schedules(int stages, int micro_batches) const;
  /// Levels of optimizer_shard. Includes sharding within hosts only if a stage has several hosts with several ranks
  /// each.
  std::vector<ShardChoice> shards(const Mesh& mesh) const;
  /// Sizes of buckets; the first is the job's, or the default.
  std::vector<int64_t> bucket_sizes() const;

 private:
  bool is_fixed(const std::string& field) const;
  std::vector<int> open_stage_counts() const;
  std::vector<int> open_micro_batch_counts(Networks& networks, std::vector<std::string>& notes) const;

  const JobSpec& job_;
  const int ranks_of_host_;
  std::vector<int> stage_counts_, micro_batch_counts_;
  std::vector<Recompute> recompute_ways_;
};

}  // namespace trainctl
