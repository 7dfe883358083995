// Time and memory are linear in the blocks of each run, and in the micro-batches: two sizes tell the slope.
#include "engine/search/small_jobs.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace trainctl {
namespace {

constexpr int kFewBlocks = 3, kMoreBlocks = 5;
/// A job of fewer layers is tried as it is.
constexpr int64_t kLittleWork = 120;

struct Count {
  int count = 1;
  double weight = 1;
};

/// Two numbers of micro-batches that stand for all of them.
std::vector<Count> micro_batches_of(const PlanChoice& choice) {
  const int few = choice.stages == 1 ? 2 : 2 * choice.stages, more = choice.stages == 1 ? 3 : 3 * choice.stages;
  const int all = choice.micro_batches;
  if (all < few + more) return {{all, 1}};
  const double slope = static_cast<double>(all - few) / (more - few);
  return {{few, 1 - slope}, {more, slope}};
}

int64_t layers_of(const JobSpec& job) { return static_cast<int64_t>(job.network.size()); }

}  // namespace

SmallJobs::SmallJobs(const JobSpec& job, const Repeats& repeats) : whole_(job) {
  std::vector<int> few = repeats.blocks;
  for (int& count : few) count = count >= kFewBlocks + kMoreBlocks ? kFewBlocks : count;
  if (few == repeats.blocks) return;
  folded_.push_back(fold(job, repeats, few).job);
  weights_.push_back(1);
  for (size_t run = 0; run < few.size(); ++run) {
    if (few[run] == repeats.blocks[run]) continue;
    std::vector<int> more = few;
    more[run] = kMoreBlocks;
    folded_.push_back(fold(job, repeats, more).job);
    weights_.push_back(static_cast<double>(repeats.blocks[run] - kFewBlocks) / (kMoreBlocks - kFewBlocks));
    weights_[0] -= weights_.back();
  }
}

SmallJobs::Sizes SmallJobs::sizes_of(const PlanChoice& choice) const {
  const bool is_large = layers_of(whole_) * choice.micro_batches > kLittleWork;
  const std::vector<Count> counts = is_large ? micro_batches_of(choice) : std::vector<Count>{{choice.micro_batches, 1}};
  Sizes sizes;
  const auto add = [&](const JobSpec& job, double weight) {
    for (const Count& count : counts) {
      sizes.all.push_back({&job, count.count, weight * count.weight});
      sizes.work += layers_of(job) * count.count;
    }
  };
  if (choice.stages > 1 || folded_.empty() || !is_large) {
    add(whole_, 1);
    return sizes;
  }
  for (size_t f = 0; f < folded_.size(); ++f) add(folded_[f], weights_[f]);
  return sizes;
}

Trial SmallJobs::sum_of(const PlanChoice& choice, const Sizes& sizes, const TryPlan& try_plan) const {
  Trial sum{.in_full = sizes.is_whole()};
  double memory = 0;
  for (const Size& size : sizes.all) {
    JobSpec job = with_choice(*size.job, choice);
    job.dataset.batch = job.dataset.batch / choice.micro_batches * size.micro_batches;
    job.parallel.micro_batches = size.micro_batches;
    Trial one = try_plan(std::move(job));
    if (!one.fault.empty()) return one;
    sum.seconds += size.weight * one.seconds;
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
