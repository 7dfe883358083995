// Tries plans that recompute in some of the blocks, and the cuts that this makes worthwhile.
#include "engine/search/trials/recompute_in_some_blocks.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "engine/search/choices/some_blocks.h"
#include "engine/search/trials/recompute_mixes.h"
#include "engine/search/trials/single_changes.h"

namespace trainctl {
namespace {

/// Recomputing in some blocks is tried for this many plans, with this many numbers of blocks of each, if it is expected
/// to save more than this part of the step.
constexpr int kMostMixes = 5, kMostCounts = 3;
constexpr double kMixMatters = 0.001;
/// Number of other cuts that are tried for the best of these, if they are expected to take at most this many times as
/// long.
constexpr size_t kMostOtherCuts = 4;
constexpr double kOtherCutsDoubt = 1.03;
/// A plan that needs this many times the memory may fit with other cuts.
constexpr double kNearlyFits = 1.05;

bool nearly_fits(const PlanTrials& t, const Trial& trial) {
  return trial.fault.empty() && static_cast<double>(trial.memory) <= kNearlyFits * static_cast<double>(t.memory);
}

std::optional<size_t> fastest_that_nearly_fits(const PlanTrials& t) {
  std::optional<size_t> fastest = t.tried.fastest();
  for (size_t i = 0; i < t.tried.size(); ++i) {
    const Trial& trial = t.tried[i].trial;
    if (nearly_fits(t, trial) && (!fastest || trial.seconds < t.tried[*fastest].trial.seconds)) fastest = i;
  }
  return fastest;
}

/// Tries plans like `base` with other cuts and without recompute, the fastest first, as long as they are expected to
/// take about as long as those of `base`. `base` is a copy because trials are added to t.sources.
void try_other_cuts_of(PlanTrials& t, const Considered base) {
  std::vector<Considered> others;
  double own = kNoTime;
  for (const Considered& one : t.weighed.all()) {
    Considered alike = one;
    alike.cuts = base.cuts;
    alike.recompute = base.recompute;
    alike.some = base.some;
    if (one.recompute != 0 || differences(alike, base) != 0) continue;
    if (one.cuts->name == base.cuts->name)
      own = one.expected.seconds;
    else
      others.push_back(one);
  }
  std::stable_sort(others.begin(), others.end(),
                   [](const Considered& a, const Considered& b) { return a.expected.seconds < b.expected.seconds; });
  for (size_t i = 0; i < others.size() && i < kMostOtherCuts; ++i)
    if (others[i].expected.seconds <= kOtherCutsDoubt * own) t.try_one(others[i], true);
}

/// Finds the fastest plan that is only slightly too large and recomputes the same layers in all blocks.
std::optional<size_t> fastest_slightly_too_large(const PlanTrials& t) {
  const std::optional<size_t> best = t.tried.fastest();
  std::optional<size_t> fastest;
  for (size_t i = 0; i < t.tried.size(); ++i) {
    const Trial& trial = t.tried[i].trial;
    if (t.sources[i].some || !nearly_fits(t, trial) || trial.fits(t.memory)) continue;
    if (best && trial.seconds >= t.tried[*best].trial.seconds) continue;
    if (!fastest || trial.seconds < t.tried[*fastest].trial.seconds) fastest = i;
  }
  return fastest;
}

/// Other cuts of the best plan, and of the fastest ones that nearly fit. Returns true if any were tried.
bool try_other_cuts(PlanTrials& t) {
  const size_t before = t.tried.size();
  if (const std::optional<size_t> best = t.tried.fastest()) try_other_cuts_of(t, t.sources[*best]);
  if (const std::optional<size_t> nearly = fastest_that_nearly_fits(t)) try_other_cuts_of(t, t.sources[*nearly]);
  if (const std::optional<size_t> nearly = fastest_slightly_too_large(t)) try_smaller_cuts(t, *nearly, kMostOtherCuts);
  return t.tried.size() > before;
}

/// Tries numbers of blocks until one fits and one less does not. Returns false if it would be more work than `most`.
bool try_mix(PlanTrials& t, const RecomputeMix& mix, int64_t most) {
  const std::vector<Recompute>& ways = t.open.recompute_ways();
  int too_few = 0, enough = mix.blocks, count = mix.count_for(t.memory);
  for (int round = 0; round < kMostCounts && too_few < count && count < enough; ++round) {
    Considered one = mix.plan;
    one.some = std::make_shared<Recompute>(recompute_of_some(t.job.network, t.networks.repeats(), ways[mix.less.way],
                                                             ways[mix.more.way], count, one.stages > 1));
    if (t.work_done + t.small.sizes_of_all_blocks(t.header_of(one)).work > most) return false;
    const TriedPlan* const tried = t.try_all_blocks(one);
    if (tried == nullptr) return true;
    const Trial& trial = tried->trial;
    if (!trial.fault.empty()) return true;
    (trial.fits(t.memory) ? enough : too_few) = count;
    const double missing = static_cast<double>(trial.memory - t.memory) / mix.memory_per_block();
    if (trial.fits(t.memory) && missing > -1) return true;  // with one block less it would not fit
    count = std::clamp(count + static_cast<int>(std::ceil(missing)), too_few + 1, std::max(too_few + 1, enough - 1));
  }
  return true;
}

/// Tries the most promising untried ways to recompute, and mixes of two ways, until work exceeds `most`.
void try_mixes(PlanTrials& t, int64_t most) {
  const int blocks = num_blocks(t.networks.repeats());
  int mixes = 0, ways = 0;
  for (const Considered& one : untried_ways(t.tried, t.sources, t.weighed.all(), t.memory_scale(), t.memory)) {
    if (one.expected.seconds >= t.best_seconds()) break;
    if (++ways > kMostMixes || t.work_done > most) break;
    t.try_one(one, true);
  }
  for (const RecomputeMix& mix :
       recompute_mixes(t.tried, t.sources, t.weighed.all(), t.memory_scale(), t.memory, blocks)) {
    const double seconds = mix.seconds_with(mix.count_for(t.memory));
    if (seconds >= (1 - kMixMatters) * t.best_seconds()) break;
    if (++mixes > kMostMixes || !try_mix(t, mix, most)) break;
  }
}

}  // namespace

void try_some_blocks(PlanTrials& t) {
  if (num_blocks(t.networks.repeats()) < 2 || !t.tried.is_short_of_memory()) return;
  const int64_t most = t.work_done + t.limits.most_work;
  try_mixes(t, most);
  if (try_other_cuts(t)) try_mixes(t, most);
}

}  // namespace trainctl
