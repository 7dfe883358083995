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
/// Plans that take at most this many times as long as the best one are polished, but no more than kMostRivals; in each
/// of them kMostCutsOfRival other cuts are tried.
constexpr double kRival = 1.01;
constexpr size_t kMostRivals = 6, kMostCutsOfRival = 6;

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
  const double own_memory = always && t.small.leaves_out_blocks() ? t.weighed.expected_of(base).memory : kNoTime;
  const std::map<std::string_view, double> shares = shares_of_step(t, base, t.tried[from].trial);
  for (const CutAlternative& other : other_cuts_of(t, base)) {
    if (!always && !matters(t, shares, other)) continue;
    const Considered one = with_cuts(base, other);
    if (!always && one.expected.seconds > base.expected.seconds * t.doubts.cuts) continue;
    if (always && t.weighed.expected_of(one).memory >= own_memory) continue;
    t.try_one(one, always);
  }
}

/// The fastest plan that fits and takes about as long as the best one, except plans that were polished and slower plans
/// that differ from one of these only in their cuts.
std::optional<size_t> next_rival(const PlanTrials& t, const std::vector<size_t>& polished) {
  const std::optional<size_t> best = t.tried.fastest();
  if (!best) return std::nullopt;
  const auto adds_nothing = [&](size_t i) {
    return std::any_of(polished.begin(), polished.end(), [&](size_t known) {
      Considered alike = t.sources[i];
      if (alike.stages == t.sources[known].stages) alike.cuts = t.sources[known].cuts;
      return i == known ||
             (differences(alike, t.sources[known]) == 0 && t.tried[i].trial.seconds >= t.tried[known].trial.seconds);
    });
  };
  std::optional<size_t> next;
  for (size_t i = 0; i < t.tried.size(); ++i) {
    const Trial& trial = t.tried[i].trial;
    if (!trial.fits(t.memory) || trial.seconds > kRival * t.tried[*best].trial.seconds || adds_nothing(i)) continue;
    if (!next || trial.seconds < t.tried[*next].trial.seconds) next = i;
  }
  return next;
}

/// Tries the plan with each way to recompute less, if its cuts were not weighed. Other phases of the search find the
/// best of the ways in between (try_some_blocks).
void try_less_recompute(PlanTrials& t, const Considered base) {
  const std::vector<Considered>& weighed = t.weighed.all();
  if (std::any_of(weighed.begin(), weighed.end(), [&](const Considered& one) { return one.cuts == base.cuts; })) return;
  for (size_t way = 0; way < base.recompute; ++way) {
    Considered one = base;
    one.recompute = way;
    one.some = nullptr;
    one.expected = t.weighed.expected_of(one);
    t.try_one(one, true);
  }
}

/// Tries some other cuts of one layer in the plan with the number `from`: those that are expected to be fastest.
void try_fast_cuts(PlanTrials& t, size_t from) {
  const Considered base = t.sources[from];
  if (!may_change_cuts(t, base)) return;
  const std::map<std::string_view, double> shares = shares_of_step(t, base, t.tried[from].trial);
  size_t tried = 0;
  for (const CutAlternative& other : other_cuts_of(t, base)) {
    if (!matters(t, shares, other)) continue;
    const Considered one = with_cuts(base, other);
    if (tried == kMostCutsOfRival || one.expected.seconds > base.expected.seconds * t.doubts.cuts) return;
    const TriedPlan* const plan = one.some ? t.try_all_blocks(one) : t.try_one(one, true);
    if (plan != nullptr) ++tried;
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

void improve_further(PlanTrials& t) {
  const int64_t most = t.work_done + t.limits.most_work;
  while (const std::optional<size_t> from = t.tried.fastest()) {
    const Considered base = t.sources[*from];
    const double scale = t.memory_scale() / kMemoryDoubt;
    for (const Considered& one : t.weighed.all()) {
      Considered alike = one;
      alike.recompute = base.recompute;
      alike.some = base.some;
      if (differences(alike, base) > 1 || !t.weighed.fits(one, scale)) continue;
      if (t.work_done > most) return;
      if (!t.is_too_slow(one, 0, t.doubts.other)) t.try_one(one, true);
    }
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

void polish(PlanTrials& t) {
  std::vector<size_t> polished;
  const int64_t most = t.work_done + t.limits.most_work;
  while (polished.size() < kMostRivals && t.work_done < most) {
    const std::optional<size_t> rival = next_rival(t, polished);
    if (!rival) return;
    polished.push_back(*rival);
    try_less_recompute(t, t.sources[*rival]);
    try_fast_cuts(t, *rival);
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
