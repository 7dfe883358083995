// Changes a tried plan in one respect.
#include "engine/search/trials/single_changes.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/plan/plan.h"

namespace trainctl {
namespace {

/// Sizes of buckets are tried if shorter waits for them may save this share of the step.
constexpr double kBucketsMatter = 0.02;
/// Cuts that need less memory are tried if they are expected to take at most this many times as long.
constexpr double kSmallerCutsDoubt = 1.03;

/// Returns the share of the step that the layers of each pattern take, with their share of the buckets that all ranks
/// wait for.
std::map<std::string_view, double> shares_of_step(const PlanTrials& t, const Considered& plan, const Trial& trial) {
  std::map<std::string_view, std::string_view> patterns;
  for (size_t l = 0; l < t.job.network.size(); ++l)
    patterns[t.job.network[l].name] = t.networks.repeats().places[l].pattern;
  const std::vector<LayerLoad> loads = t.weighed.loads(*plan.cuts);
  double elements = 0;
  for (const LayerLoad& load : loads) elements += load.elements;
  std::map<std::string_view, double> shares;
  for (const LayerLoad& load : loads) {
    const auto known = patterns.find(load.name);
    shares[known == patterns.end() ? std::string_view(load.name) : known->second] +=
        (load.seconds * plan.micro_batches + load.elements / elements * trial.bucket_seconds) / trial.seconds;
  }
  return shares;
}

/// The plan with other cuts of one layer, or of several identical layers.
Considered with_cuts(const Considered& base, const CutAlternative& other) {
  const CutChoice& cuts = *base.cuts;
  Considered one = base;
  one.expected.seconds += std::max(other.seconds, 0.0) * base.micro_batches / base.stages;
  const std::string name = cuts.name.substr(0, cuts.name.find(" with ")) + " with other cuts of " + other.pattern;
  one.cuts = std::make_shared<CutChoice>(
      CutChoice{name, KnownAs::nothing, cuts.network, cuts.mesh, with_other(*cuts.network->cuts, cuts.cuts, other)});
  return one;
}

std::vector<CutAlternative> other_cuts_of(const PlanTrials& t, const Considered& base) {
  const CutChoice& cuts = *base.cuts;
  std::vector<Diagnostic> errors;
  CutSpace space(*cuts.network->cuts, cuts.mesh, t.effort, t.cost, base.micro_batches,
                 cuts.network->strategies(cuts.mesh, base.stages, errors));
  return other_cuts(space, cuts.cuts);
}

bool may_change_cuts(const PlanTrials& t, const Considered& base) {
  return base.cuts->mesh.size() > 1 && t.is_free_to_cut();
}

/// Returns whether the layers of a pattern take so much of the step that their cuts matter; true if that is not known.
bool matters(const PlanTrials& t, const std::map<std::string_view, double>& shares, const CutAlternative& other) {
  const auto share = shares.find(other.pattern);
  return share == shares.end() || share->second >= t.doubts.least_share;
}

/// Tries other cuts of one layer, or of several identical layers, in the plan with the number `from`. With `always` it
/// also tries cuts that are not expected to be fast; in a large network, where a trial takes long, only those that are
/// expected to need less memory.
void change_cuts(PlanTrials& t, size_t from, bool always) {
  const Considered base = t.sources[from];
  if (!may_change_cuts(t, base) || (!always && t.is_enough(0, t.limits.trials))) return;
  const double own_memory = always && t.small.leaves_out_blocks() ? t.weighed.memory_of(base) : kNoTime;
  const std::map<std::string_view, double> shares = shares_of_step(t, base, t.tried[from].trial);
  for (const CutAlternative& other : other_cuts_of(t, base)) {
    if (!always && !matters(t, shares, other)) continue;
    const Considered one = with_cuts(base, other);
    if (!always && one.expected.seconds > base.expected.seconds * t.doubts.cuts) continue;
    if (always && t.weighed.memory_of(one) >= own_memory) continue;
    t.try_one(one, always);
  }
}

/// The fastest plan that would be faster than the best one if ranks waited less for its buckets; often the best itself.
std::optional<size_t> waits_for_buckets(PlanTrials& t) {
  const double best = t.tried[t.tried.settle()].trial.seconds;
  std::optional<size_t> fastest;
  for (size_t i = 0; i < t.tried.size(); ++i) {
    const Trial& trial = t.tried[i].trial;
    const double waits = trial.bucket_seconds;
    const bool has_buckets = t.sources[i].cuts->mesh.size() > 1 && t.sources[i].shard.level < 3;
    if (!has_buckets || !trial.fits(t.memory) || trial.seconds - waits > (1 - kBucketsMatter) * best) continue;
    if (!fastest || trial.seconds < t.tried[*fastest].trial.seconds) fastest = i;
  }
  return fastest;
}

}  // namespace

void improve(PlanTrials& t) {
  while (const std::optional<size_t> from = t.tried.fastest()) {
    const Considered base = t.sources[*from];
    for (const Considered& one : t.weighed.all())
      if (differences(one, base) == 1) t.try_one(one, false);
    if (t.tried.fastest() == from) change_cuts(t, *from, false);
    if (t.tried.fastest() == from) return;
  }
}

void shrink(PlanTrials& t) {
  const size_t most = t.tried.size() + 2 * t.limits.trials;
  while (t.memory > 0 && !t.tried.fastest()) {
    const std::optional<size_t> from = t.tried.smallest();
    if (!from) return;
    const Considered base = t.sources[*from];
    for (const Considered& one : t.weighed.all()) {
      if (t.tried.fastest() || (t.tried.size() >= most && t.work_done > 2 * t.limits.most_work)) return;
      if (differences(one, base) != 1) continue;
      if (one.expected.memory <= base.expected.memory * kMemoryDoubt) t.try_one(one, true);
    }
    if (t.tried.smallest() == from) change_cuts(t, *from, true);
    if (t.tried.smallest() == from) return;
  }
}

void try_smaller_cuts(PlanTrials& t, size_t from, size_t most) {
  const Considered base = t.sources[from];
  if (!may_change_cuts(t, base)) return;
  // The estimates of this plan and of its variants are assumed to be wrong by the same factor.
  const double fitting =
      t.weighed.memory_of(base) * static_cast<double>(t.memory) / static_cast<double>(t.tried[from].trial.memory);
  size_t tried = 0;
  for (const CutAlternative& other : other_cuts_of(t, base)) {
    if (tried == most) return;
    const Considered one = with_cuts(base, other);
    if (one.expected.seconds > base.expected.seconds * kSmallerCutsDoubt) return;
    if (t.weighed.memory_of(one) <= fitting && t.try_one(one, true) != nullptr) ++tried;
  }
}

void polish(PlanTrials& t, size_t most) {
  const std::optional<size_t> from = t.tried.fastest();
  if (!from || !t.tried.is_short_of_memory()) return;
  const Considered base = t.sources[*from];
  if (!may_change_cuts(t, base)) return;
  const std::map<std::string_view, double> shares = shares_of_step(t, base, t.tried[*from].trial);
  size_t tried = 0;
  for (const CutAlternative& other : other_cuts_of(t, base)) {
    if (!matters(t, shares, other)) continue;
    const Considered one = with_cuts(base, other);
    if (tried == most || one.expected.seconds > base.expected.seconds * t.doubts.cuts) return;
    if (t.try_all_blocks(one) != nullptr) ++tried;
  }
}

void try_bucket_sizes(PlanTrials& t) {
  if (t.open.bucket_sizes().size() == 1) return;
  const std::optional<size_t> from = waits_for_buckets(t);
  if (!from) return;
  const Considered base = t.sources[*from];
  double elements = 0;
  for (const LayerLoad& load : t.weighed.loads(*base.cuts)) elements += load.elements;
  const double most = elements * t.weighed.bytes().gradient;
  for (const int64_t size : t.open.bucket_sizes()) {
    const auto bytes = static_cast<double>(size), own = static_cast<double>(kBucketBytes);
    if (size == base.bucket_bytes || std::min(bytes, own) >= most) continue;  // one bucket, whichever the size
    Considered one = base;
    one.bucket_bytes = size;
    PlanChoice choice = t.header_of(one);
    t.add_cuts(one, choice);
    if (t.tried.is_known(choice)) continue;
    Trial trial = t.try_whole(choice);
    t.add(one, std::move(choice), std::move(trial));
  }
}

}  // namespace trainctl
