// Lists the values of each choice that a job leaves open to the search.
#include "engine/search/choices/open_choices.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <set>

#include "engine/ops/op_def.h"
#include "engine/plan/axes/host_axes.h"
#include "engine/plan/plan.h"

namespace trainctl {
namespace {

constexpr int kMostMicroBatches = 64;
constexpr std::array kShardFields = {"level", "min_kb", "within_host"};

std::vector<int> divisors(int64_t number, int64_t most) {
  std::vector<int> all;
  for (int64_t d = 1; d <= std::min(number, most); ++d)
    if (number % d == 0) all.push_back(static_cast<int>(d));
  return all;
}

void add_rule(Recompute& rules, const std::string& pattern) {
  const auto same = [&](const RecomputeRule& rule) { return rule.pattern == pattern; };
  if (std::none_of(rules.begin(), rules.end(), same)) rules.push_back({pattern, ""});
}

/// `optimizer_shard: 2` has no fields.
bool has_shard_fields(const JobSpec& job) {
  return std::any_of(kShardFields.begin(), kShardFields.end(), [&](const char* field) {
    return job.positions.contains(std::string("parallel.optimizer_shard.") + field);
  });
}

}  // namespace

bool gives_stages(const JobSpec& job) {
  return job.positions.contains("parallel.stages") || job.positions.contains("parallel.stage_config");
}

/// `optimizer_shard: {min_kb: 0}` leaves the level open.
bool gives_level(const JobSpec& job) {
  return job.positions.contains("parallel.optimizer_shard.level") ||
         (job.positions.contains("parallel.optimizer_shard") && !has_shard_fields(job));
}

OpenChoices::OpenChoices(const JobSpec& job, Networks& networks, const Machine& machine,
                         std::vector<std::string>& notes)
    : job_(job),
      ranks_of_host_(ranks_of_host(job, machine)),
      stage_counts_(open_stage_counts()),
      micro_batch_counts_(open_micro_batch_counts(networks, notes)),
      recompute_ways_(is_fixed("recompute") ? std::vector<Recompute>{job.parallel.recompute}
                                            : trainctl::recompute_ways(job, networks)) {}

bool OpenChoices::is_fixed(const std::string& field) const {
  return job_.parallel.search.algorithm == SearchAlgorithm::sharding_propagation ||
         job_.positions.contains("parallel." + field);
}

std::vector<int> OpenChoices::open_stage_counts() const {
  if (is_fixed("stages") || is_fixed("stage_config")) return {job_.parallel.stages};
  return divisors(job_.launch.ranks, static_cast<int64_t>(job_.network.size()));
}

/// Open only where the network's numbers do not depend on it.
std::vector<int> OpenChoices::open_micro_batch_counts(Networks& networks, std::vector<std::string>& notes) const {
  const int given = job_.parallel.micro_batches;
  if (is_fixed("micro_batches")) return {given};
  for (const Layer& layer : networks.of(given)->graph.layers) {
    if (layer.mixed_rows == 0) continue;
    notes.push_back(
        fmt::format("parallel.micro_batches stays {}: {} computes over the rows of a micro-batch, so another number "
                    "would change the results",
                    given, layer.name));
    return {given};
  }
  std::vector<int> counts;
  for (int m : divisors(job_.dataset.batch, kMostMicroBatches))
    if (counts.empty() || m >= 2 * counts.back()) counts.push_back(m);
  return counts;
}

std::vector<std::pair<Schedule, int>> OpenChoices::schedules(int stages, int micro_batches) const {
  const ParallelSpec& given = job_.parallel;
  if (stages == 1) return {{is_fixed("schedule") && given.chunks == 1 ? given.schedule : Schedule::one_f_one_b, 1}};
  if (is_fixed("schedule") || is_fixed("chunks") || is_fixed("stage_config")) return {{given.schedule, given.chunks}};
  std::vector<std::pair<Schedule, int>> all = {
      {Schedule::one_f_one_b, 1}, {Schedule::gpipe, 1}, {Schedule::zero_bubble, 1}};
  for (int chunks : {2, 4})
    if (micro_batches % stages == 0 && static_cast<int>(job_.network.size()) >= 2 * chunks * stages)
      all.emplace_back(Schedule::interleaved_1f1b, chunks);
  return all;
}

std::vector<ShardChoice> OpenChoices::shards(const Mesh& mesh) const {
  const OptimizerShardSpec& given = job_.parallel.optimizer_shard;
  const bool is_number = is_fixed("optimizer_shard") && !has_shard_fields(job_);
  std::vector<int> levels = {0};
  if (is_number || is_fixed("optimizer_shard.level")) {
    levels = {given.level};
  } else if (mesh.size() > 1) {
    levels = {0, 1, 2, 3};
  }
  std::vector<ShardChoice> all;
  const size_t within = axes_within_hosts(mesh, ranks_of_host_).size();
  const bool differs = within > 0 && within < static_cast<size_t>(mesh.num_axes());
  for (int level : levels) {
    const bool is_open = level > 0 && differs && !is_number && !is_fixed("optimizer_shard.within_host");
    all.push_back({level, given.within_host});
    if (is_open) all.push_back({level, true});
  }
  return all;
}

std::vector<int64_t> OpenChoices::bucket_sizes() const {
  if (is_fixed("bucket_bytes")) return {job_.parallel.bucket_bytes};
  return {0, kBucketBytes / 4, kBucketBytes * 4};
}

std::vector<Recompute> recompute_ways(const JobSpec& job, Networks& networks) {
  const std::shared_ptr<const SearchNetwork> network = networks.of(job.parallel.micro_batches);
  const Repeats& repeats = networks.repeats();
  std::set<std::string> costly;  // patterns of layers with products or attention
  for (const Node& node : network->graph.nodes)
    if (const KernelDef& kernel = get_op(node.op).kernel;
        node.phase == Phase::forward && (kernel.is_product || kernel.has_products || node.op == "attention"))
      costly.insert(network->cuts->patterns[static_cast<size_t>(node.layer)]);
  Recompute cheap, inputs, attention, blocks;
  for (size_t begin = 0, end = 0; begin < job.network.size(); begin = end) {
    const BlockPlace& block = repeats.places[begin];
    std::optional<size_t> of_attention;  // the last of the block
    for (end = begin;
         end < job.network.size() && repeats.places[end].block == block.block && repeats.places[end].run == block.run;
         ++end)
      if (job.network[end].type == "attention") of_attention = end;
    if (block.run < 0) continue;
    for (size_t l = begin; l < end; ++l) {
      const std::string& pattern = repeats.places[l].pattern;
      if (network->leaves_block.contains(pattern)) continue;
      const bool is_cheap = !costly.contains(pattern);
      if (is_cheap) add_rule(cheap, pattern);
      if (of_attention && (is_cheap || l < *of_attention)) add_rule(inputs, pattern);
      if (of_attention && (is_cheap || l <= *of_attention)) add_rule(attention, pattern);
      add_rule(blocks, pattern);
    }
  }
  std::vector<Recompute> ways = {{}};
  for (Recompute* way : {&cheap, &inputs, &attention, &blocks})
    if (!way->empty()) ways.push_back(std::move(*way));
  return ways;
}

}  // namespace trainctl
