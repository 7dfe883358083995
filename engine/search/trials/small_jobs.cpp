// Estimates the time and memory of a large job from small ones. Both are linear in the number of blocks of each run of
// equal blocks, and in the number of micro-batches, so they are extrapolated from jobs of two sizes.
#include "engine/search/trials/small_jobs.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "engine/search/trials/fewer_blocks.h"

namespace trainctl {
namespace {

constexpr int kFewBlocks = 3, kMoreBlocks = 5;
/// Numbers of blocks in the stage that has fewest.
constexpr int kFewBlocksOfStage = 1, kMoreBlocksOfStage = 2;
/// A job with fewer layers is tried unchanged.
constexpr int64_t kLittleWork = 120;

struct Count {
  int count = 1;
  double weight = 1;
};

/// Two numbers of micro-batches from which all others are derived.
std::vector<Count> micro_batches_of(const PlanChoice& choice) {
  const int few = choice.stages == 1 ? 2 : 2 * choice.stages, more = choice.stages == 1 ? 3 : 3 * choice.stages;
  const int all = choice.micro_batches;
  if (all < few + more) return {{all, 1}};
  const double slope = static_cast<double>(all - few) / (more - few);
  return {{few, 1 - slope}, {more, slope}};
}

int64_t layers_of(const JobSpec& job) { return static_cast<int64_t>(job.network.size()); }

}  // namespace

SmallJobs::SmallJobs(const JobSpec& job, Networks& networks, const CostModel& cost)
    : whole_(job), networks_(networks), cost_(cost) {}

bool SmallJobs::is_large(int micro_batches) const { return layers_of(whole_) * micro_batches > kLittleWork; }

/// For one stage: a job with few blocks in all runs, then for each run a job with more blocks in that run.
std::vector<SmallJobs::Folding> SmallJobs::folded_runs() const {
  const Repeats& repeats = networks_.repeats();
  std::vector<int> few = repeats.blocks;
  for (int& count : few) count = count >= kFewBlocks + kMoreBlocks ? kFewBlocks : count;
  if (few == repeats.blocks) return {};
  std::vector<Folding> all = {{fold(whole_, repeats, few).job, 1}};
  for (size_t run = 0; run < few.size(); ++run) {
    if (few[run] == repeats.blocks[run]) continue;
    std::vector<int> more = few;
    more[run] = kMoreBlocks;
    const double slope = static_cast<double>(repeats.blocks[run] - kFewBlocks) / (kMoreBlocks - kFewBlocks);
    all[0].weight -= slope;
    all.push_back({fold(whole_, repeats, more).job, slope});
  }
  return all;
}

std::vector<SmallJobs::Folding> SmallJobs::folded_stages(const PlanChoice& choice) const {
  if (!choice.stage_config.empty()) return {};
  const Repeats& repeats = networks_.repeats();
  const int stages = choice.stages * choice.chunks;
  const std::vector<int> of_layer =
      expected_stages(*networks_.of(choice.micro_batches), whole_, repeats, cost_, stages);
  const int most = blocks_to_leave_out(repeats, of_layer, stages, kFewBlocksOfStage),
            step = kMoreBlocksOfStage - kFewBlocksOfStage;
  if (most <= step) return {};
  const double slope = static_cast<double>(most) / step;
  std::vector<Folding> few = {{with_fewer_blocks(whole_, repeats, of_layer, stages, most), 1 - slope},
                              {with_fewer_blocks(whole_, repeats, of_layer, stages, most - step), slope}};
  const bool saves = 2 * (layers_of(few[0].job) + layers_of(few[1].job)) <= layers_of(whole_);
  return saves ? std::move(few) : std::vector<Folding>{};
}

void SmallJobs::add(const JobSpec& job, double weight, const PlanChoice& choice, Sizes& sizes) const {
  const bool is_large = this->is_large(choice.micro_batches);
  const std::vector<Count> counts = is_large ? micro_batches_of(choice) : std::vector<Count>{{choice.micro_batches, 1}};
  for (const Count& count : counts) {
    sizes.all.push_back({&job, count.count, weight * count.weight});
    sizes.work += layers_of(job) * count.count;
  }
}

SmallJobs::Sizes SmallJobs::sizes_of(const PlanChoice& choice) {
  const auto [known, fresh] = foldings_.try_emplace(choice.stages * choice.chunks);
  if (fresh) known->second = known->first == 1 ? folded_runs() : folded_stages(choice);
  if (known->second.empty() || !is_large(choice.micro_batches)) return sizes_of_all_blocks(choice);
  Sizes sizes;
  for (const Folding& folding : known->second) add(folding.job, folding.weight, choice, sizes);
  return sizes;
}

SmallJobs::Sizes SmallJobs::sizes_of_all_blocks(const PlanChoice& choice) const {
  Sizes sizes;
  add(whole_, 1, choice, sizes);
  return sizes;
}

Trial SmallJobs::sum_of(const PlanChoice& choice, const Sizes& sizes, const TryPlan& try_plan) const {
  if (sizes.is_whole()) return try_plan(with_choice(whole_, choice), TriedRanks::one_per_stage);
  Trial sum{.in_full = false, .of_all_ranks = false};
  double memory = 0;
  for (const Size& size : sizes.all) {
    sum.of_all_blocks = sum.of_all_blocks && size.job == &whole_;
    JobSpec job = with_choice(*size.job, choice);
    job.parallel.stage_config = size.job->parallel.stage_config;
    job.dataset.batch = job.dataset.batch / choice.micro_batches * size.micro_batches;
    job.parallel.micro_batches = size.micro_batches;
    Trial one = try_plan(std::move(job), TriedRanks::one_per_stage);
    if (!one.fault.empty()) return one;
    sum.seconds += size.weight * one.seconds;
    sum.bucket_seconds += size.weight * one.bucket_seconds;
    memory += size.weight * static_cast<double>(one.memory);
    sum.parts.resize(one.parts.size());
    for (size_t p = 0; p < one.parts.size(); ++p) {
      sum.parts[p].first = one.parts[p].first;
      sum.parts[p].second += size.weight * one.parts[p].second;
    }
  }
  sum.memory = std::llround(memory);
  return sum;
}

}  // namespace trainctl
