// Tries plans within limits of work.
#include "engine/search/trials/plan_trials.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "engine/plan/plan.h"
#include "engine/spec/reference_model.h"

namespace trainctl {
namespace {

/// Doubts for large networks of long kernels: each trial takes long, and estimates are right to a few per cent.
constexpr Doubts kFewDoubts = {1.12, 1.05, 1.03, 1.02, 0.01, false};
/// In full, a plan may turn out to be faster by this factor.
constexpr double kMayBeFaster = 1.04;
/// A plan surely does not fit if it needs this many times the limit by the most favorable of kFewRatios plans or more.
constexpr double kSurelyTooLarge = 1.1;
constexpr int kFewRatios = 2;
/// A job of no more layers is searched widely if it is short of memory, with this many times as much work.
constexpr int kFewLayers = 12;
constexpr int64_t kWideWork = 2;

/// `folded`: plans are tried on fewer blocks, in which a layer's cuts count for many, so fewer plans differ.
TrialLimits limits_of(Effort effort, bool folded) {
  if (effort == Effort::low) return {1'000, 500, 100, 16, 8};
  if (effort == Effort::high) return {400'000, 40'000, 20'000, 600, 100};
  return folded ? TrialLimits{10'000, 1'500, 500, 16, 10} : TrialLimits{10'000, 4'000, 500, 40, 16};
}

JobSpec without_positions(JobSpec job) {
  job.positions.clear();
  job.source.clear();
  return job;
}

}  // namespace

PlanTrials::PlanTrials(const JobSpec& its_job, const DataShapes& data, const CostModel& its_cost,
                       const PlanLimits& plan_limits, const TryPlan& its_try_plan)
    : job(its_job),
      bare(without_positions(job)),
      cost(its_cost),
      memory(plan_limits.memory),
      known_seconds(plan_limits.seconds),
      try_plan(its_try_plan),
      effort(job.parallel.search.effort),
      networks(job, data, cost),
      small(bare, networks, cost),
      limits(limits_of(effort, small.leaves_out_blocks())),
      open(job, networks, cost.machine(), notes),
      weighed(job, networks, open, cost, memory, small.leaves_out_blocks()),
      doubts(effort != Effort::high && weighed.has_long_kernels() ? kFewDoubts : Doubts{}),
      tried(job, memory, try_plan) {}

const TriedPlan* PlanTrials::try_one(const Considered& one, bool always, bool first) {
  if (!always && is_enough(0, limits.trials)) return nullptr;
  if (always && known_seconds < kNoTime && least_ratio(one) < kNoTime &&
      one.expected.seconds * least_ratio(one) > doubts.first * known_seconds)
    return nullptr;
  if (!always && one.saves_in_vain && !doubts.any_saver && !tried.is_short_of_memory()) return nullptr;
  if (!always && is_too_large(one)) return nullptr;
  PlanChoice choice = header_of(one);
  const SmallJobs::Sizes sizes = small.sizes_of(choice);
  if (!always &&
      (is_enough(sizes.work, limits.trials) || is_too_slow(one, sizes.work, first ? doubts.first : doubts.other)))
    return nullptr;
  add_cuts(one, choice);
  if (tried.is_known(choice)) return nullptr;
  work_done += sizes.work;
  Trial trial = small.sum_of(choice, sizes, try_plan);
  // The job may name layers that a small one does not have.
  if (!trial.fault.empty() && !sizes.is_whole()) trial = try_whole(choice);
  return &add(one, std::move(choice), std::move(trial));
}

const TriedPlan* PlanTrials::try_all_blocks(const Considered& one) {
  PlanChoice choice = header_of(one);
  const SmallJobs::Sizes sizes = small.sizes_of_all_blocks(choice);
  add_cuts(one, choice);
  if (tried.is_known(choice)) return nullptr;
  work_done += sizes.work;
  Trial trial = small.sum_of(choice, sizes, try_plan);
  return &add(one, std::move(choice), std::move(trial));
}

Trial PlanTrials::try_whole(const PlanChoice& choice) const {
  return try_plan(with_choice(bare, choice), TriedRanks::one_per_stage);
}

const TriedPlan& PlanTrials::add(const Considered& one, PlanChoice choice, Trial trial) {
  std::string name = fmt::format("{}; {}", one.cuts->name, to_string(choice));
  sources.push_back(one);
  if (trial.fault.empty()) {
    double& least = least_ratio_.try_emplace(kind_of(one), kNoTime).first->second;
    least = std::min(least, trial.seconds / one.expected.seconds);
    if (!one.some) {
      MemoryRatio& ratio = memory_ratios_[saving_kind_of(one)];
      ++ratio.plans;
      ratio.least = std::min(ratio.least, static_cast<double>(trial.memory) / one.expected.memory);
    }
  }
  return tried[tried.add({std::move(name), std::move(choice), one.expected.seconds, std::move(trial)})];
}

PlanChoice PlanTrials::header_of(const Considered& one) const {
  return {.stages = one.stages,
          .chunks = one.chunks,
          .schedule = one.schedule,
          .micro_batches = one.micro_batches,
          .optimizer_shard = one.shard,
          .bucket_bytes = one.bucket_bytes,
          .stage_config = job.parallel.stage_config,
          .strategies = {},
          .recompute = one.some ? *one.some : open.recompute_ways()[one.recompute]};
}

void PlanTrials::add_cuts(const Considered& one, PlanChoice& choice) const {
  const CutChoice& cuts = *one.cuts;
  if (cuts.mesh.size() == 1) return;
  std::set<std::string> added;  // patterns, each of which stands for several layers
  const Graph& graph = cuts.network->graph;
  // With parallel.data, tensor or context the cuts of all other layers follow from these sizes.
  for (size_t l = 0; l < graph.layers.size() && !job.parallel.has_sizes(); ++l) {
    if (layer_in_job(graph.layers[l].name) != graph.layers[l].name) continue;  // it has the cuts of its original
    const std::string& pattern = cuts.network->cuts->patterns[l];
    const bool given =
        rule_for(job.parallel.strategies, graph.layers[l].name, cuts.network->facts[l].is_loss) != nullptr;
    if (!given && added.insert(pattern).second)
      choice.strategies.push_back({pattern, cuts_of(cuts.mesh, graph.layers[l], cuts.cuts.of_layer[l]), "", ""});
  }
  for (const StrategySpec& given : job.parallel.strategies) choice.strategies.push_back(given);
}

bool PlanTrials::is_enough(int64_t work, size_t most) const {
  if (searches_widely()) return work_done + work > kWideWork * limits.most_work;
  if (work_done + work > limits.most_work) return true;
  return tried.size() >= (tried.is_short_of_memory() ? 3 * most : most) && work_done + work > limits.little_work;
}

bool PlanTrials::is_too_slow(const Considered& one, int64_t work, double doubt) const {
  const double best = best_seconds(), ratio = least_ratio(one);
  if (work > limits.long_work) doubt = doubts.lengthy;
  return best < kNoTime && ratio < kNoTime && one.expected.seconds * ratio > doubt * best;
}

double PlanTrials::least_ratio(const Considered& one) const {
  const Kind kind = kind_of(one);
  if (const auto known = least_ratio_.find(kind); known != least_ratio_.end()) return known->second;
  double ratio = kNoTime;
  for (const auto& [other, least] : least_ratio_)
    if (std::get<0>(other) == std::get<0>(kind)) ratio = std::min(ratio, least);
  return ratio;
}

bool PlanTrials::is_too_large(const Considered& one) const {
  const std::optional<size_t> other = tried.fastest_too_large();
  const auto known = memory_ratios_.find(saving_kind_of(one));
  const double ratio = least_ratio(one);
  if (!other || one.some || known == memory_ratios_.end() || known->second.plans < kFewRatios || ratio == kNoTime)
    return false;
  return known->second.least * one.expected.memory > kSurelyTooLarge * static_cast<double>(memory) &&
         ratio * one.expected.seconds >= tried[*other].trial.seconds;
}

double PlanTrials::best_seconds() const {
  const std::optional<size_t> best = tried.fastest();
  return best ? std::min(tried[*best].trial.seconds, known_seconds) : known_seconds;
}

bool PlanTrials::is_beaten() const {
  const std::optional<size_t> best = tried.fastest();
  return best && tried[*best].trial.seconds > kMayBeFaster * known_seconds;
}

bool PlanTrials::searches_widely() const {
  return static_cast<int>(job.network.size()) <= kFewLayers && tried.is_short_of_memory() && is_free_to_cut();
}

bool PlanTrials::is_plain(const Considered& one) const {
  return one.stages == 1 && one.recompute == 0 && one.micro_batches == open.micro_batch_counts().front();
}

double PlanTrials::memory_scale() const {
  std::vector<double> scales;
  for (size_t i = 0; i < tried.size(); ++i)
    if (tried[i].trial.fault.empty())
      scales.push_back(static_cast<double>(tried[i].trial.memory) / sources[i].expected.memory);
  if (scales.empty()) return 1;
  const auto middle = scales.begin() + static_cast<std::ptrdiff_t>(scales.size() / 2);
  std::nth_element(scales.begin(), middle, scales.end());
  return *middle;
}

}  // namespace trainctl
