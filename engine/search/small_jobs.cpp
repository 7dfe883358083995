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

struct Size {
  int count = 1;
  double weight = 1;
};

/// Two numbers of micro-batches that stand for all of them.
std::vector<Size> sizes_of(const ParallelSpec& parallel) {
  const int few = parallel.stages == 1 ? 2 : 2 * parallel.stages, more = parallel.stages == 1 ? 3 : 3 * parallel.stages;
  const int all = parallel.micro_batches;
  if (all < few + more) return {{all, 1}};
  const double slope = static_cast<double>(all - few) / (more - few);
  return {{few, 1 - slope}, {more, slope}};
}

}  // namespace

int64_t work_of(const JobSpec& job) { return static_cast<int64_t>(job.network.size()) * job.parallel.micro_batches; }

SmallJobs small_jobs(const JobSpec& whole, const Repeats& repeats) {
  const bool one_stage = whole.parallel.stages == 1;
  SmallJobs blocks{{whole}, {1}};
  std::vector<int> few = repeats.blocks;
  for (int& count : few) count = count >= kFewBlocks + kMoreBlocks ? kFewBlocks : count;
  if (one_stage && few != repeats.blocks && work_of(whole) > kLittleWork) {
    blocks.jobs = {fold(whole, repeats, few).job};
    for (size_t run = 0; run < few.size(); ++run) {
      if (few[run] == repeats.blocks[run]) continue;
      std::vector<int> more = few;
      more[run] = kMoreBlocks;
      blocks.jobs.push_back(fold(whole, repeats, more).job);
      blocks.weights.push_back(static_cast<double>(repeats.blocks[run] - kFewBlocks) / (kMoreBlocks - kFewBlocks));
      blocks.weights[0] -= blocks.weights.back();
    }
  }
  SmallJobs small;
  const int micro_batches = whole.parallel.micro_batches;
  const std::vector<Size> sizes = work_of(whole) > kLittleWork ? sizes_of(whole.parallel) : std::vector<Size>{{micro_batches, 1}};
  for (size_t b = 0; b < blocks.jobs.size(); ++b)
    for (const Size& size : sizes) {
      JobSpec job = blocks.jobs[b];
      job.dataset.batch = job.dataset.batch / micro_batches * size.count;
      job.parallel.micro_batches = size.count;
      small.work += work_of(job);
      small.jobs.push_back(std::move(job));
      small.weights.push_back(blocks.weights[b] * size.weight);
    }
  return small;
}

Trial sum_of(const SmallJobs& small, const TryPlan& try_plan) {
  Trial sum{.in_full = small.is_whole()};
  double memory = 0;
  for (size_t i = 0; i < small.jobs.size(); ++i) {
    Trial one = try_plan(small.jobs[i]);
    if (!one.fault.empty()) return one;
    sum.seconds += small.weights[i] * one.seconds;
    memory += small.weights[i] * static_cast<double>(one.memory);
    if (sum.parts.empty()) {
      sum.parts = std::move(one.parts);
      for (auto& part : sum.parts) part.second *= small.weights[i];
    } else {
      for (size_t p = 0; p < sum.parts.size(); ++p) sum.parts[p].second += small.weights[i] * one.parts[p].second;
    }
  }
  sum.memory = std::llround(memory);
  return sum;
}

}  // namespace trainctl
