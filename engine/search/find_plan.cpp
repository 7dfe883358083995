// The search over all that a job leaves open. For each number of stages and of micro-batches it finds the best cuts,
// and estimates them with each schedule, level of optimizer_shard and way to recompute. The few plans with the best
// estimates are tried: planned, compiled and simulated.
#include "engine/search/find_plan.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "engine/search/no_plan_fits.h"
#include "engine/search/trials/exhaustive.h"
#include "engine/search/trials/near_limit.h"
#include "engine/search/trials/plan_trials.h"
#include "engine/search/trials/recompute_in_some_blocks.h"
#include "engine/search/trials/single_changes.h"

namespace trainctl {
namespace {

/// A well-known plan is tried unless its estimate is this many times the best.
constexpr double kKnownDoubt = 3;
/// Number of well-known plans that save memory in the same way, at each level of optimizer_shard.
constexpr size_t kKnownSavers = 2;

/// Number of other cuts of the best plan that are tried in the end if memory is short.
constexpr size_t kMostPolished = 6;

/// Well-known plans of one stage: data parallel at each level of optimizer_shard, tensor parallel at the best level,
/// and all ranks computing the same, which is the fastest where messages take longer than the work.
void try_well_known(PlanTrials& t) {
  for (const Considered& one : t.weighed.all()) {
    if (one.cuts->known_as != KnownAs::data_parallel || !t.is_plain(one)) continue;
    t.try_one(one, true);
  }
  t.weighed.sort(t.memory_scale());
  for (const KnownAs known : {KnownAs::tensor_parallel, KnownAs::whole}) {
    const std::vector<Considered>& all = t.weighed.all();
    const auto other = std::find_if(
        all.begin(), all.end(), [&](const Considered& one) { return one.cuts->known_as == known && t.is_plain(one); });
    const std::optional<size_t> best = t.tried.fastest();
    if (other != all.end() && !(best && other->expected.seconds > kKnownDoubt * t.tried[*best].expected))
      t.try_one(*other, true);
  }
}

/// Well-known data parallel plans that save memory: at each level of optimizer_shard, the fastest that recompute, and
/// the fastest that only divide the batch, among those that are expected to fit.
void try_known_savers(PlanTrials& t) {
  std::map<std::pair<int, bool>, size_t> num_tried;  // by level, and whether they recompute
  for (size_t i = 0; i < t.tried.size(); ++i) {
    const Considered& one = t.sources[i];
    if (one.cuts->known_as != KnownAs::data_parallel || !t.is_plain(one) || !t.tried[i].trial.fits(t.memory)) continue;
    for (const bool recomputes : {false, true})
      num_tried[{one.shard.level, recomputes}] = kKnownSavers;  // this level fits without saving
  }
  const double scale = t.memory_scale();
  for (const Considered& one : t.weighed.all()) {
    const bool is_known = one.stages == 1 && one.cuts->known_as == KnownAs::data_parallel && !t.is_plain(one);
    if (!is_known || !t.weighed.fits(one, scale) || t.is_too_slow(one, 0, t.doubts.first)) continue;
    size_t& alike = num_tried[{one.shard.level, one.recompute != 0}];
    if (alike < kKnownSavers && t.try_one(one, true) != nullptr) ++alike;
  }
}

/// Tries the choices that are expected to be best, until `most` plans have been tried.
void try_best(PlanTrials& t, size_t most) {
  for (const auto& [turn, one] : t.weighed.in_turns()) {
    if (t.tried.fastest() && t.tried.size() >= most) break;
    t.try_one(*one, false, turn == 0 && one->stages == 1);
  }
}

/// If no choice is expected to fit, this many of those that are expected to need the least memory are tried first.
constexpr size_t kSmallest = 4;
/// If even they need this many times the limit, no other plan fits: the first number is for large networks, whose
/// plans differ less from their estimates.
constexpr double kHopeless = 1.3, kHopelessOfFewLayers = 2;

/// True if all plans need so much more memory than the limit that it is not worth trying more.
bool is_hopeless(PlanTrials& t) {
  t.weighed.sort_by_memory();
  for (const Considered& one : t.weighed.all()) {
    if (t.tried.size() >= kSmallest) break;
    t.try_one(one, true);
  }
  t.weighed.sort(t.memory_scale());
  const std::optional<size_t> smallest = t.tried.smallest();
  if (!smallest) return false;
  const double factor = t.small.leaves_out_blocks() ? kHopeless : kHopelessOfFewLayers;
  return static_cast<double>(t.tried[*smallest].trial.memory) > factor * static_cast<double>(t.memory);
}

/// For a search whose estimates of memory were too low: tries cuts that need the least memory, then the choices that
/// are expected to need the least.
void try_least_memory(PlanTrials& t) {
  if (t.memory <= 0) return;
  t.weighed.weigh_short_of_memory(true);
  t.weighed.sort_by_memory();
  const size_t before = t.tried.size();
  for (const Considered& one : t.weighed.all()) {
    if (t.tried.fastest() || (t.tried.size() >= before + t.limits.trials && t.work_done > t.limits.most_work)) break;
    if (t.tried.size() >= before + kSmallest && !t.weighed.fits(one, t.memory_scale() / kMemoryDoubt)) break;
    t.try_one(one, true);
  }
  t.weighed.sort(t.memory_scale());
}

/// Tries the plans that are expected to be fast first, as long as they may be faster than the best.
void try_many_cuts(PlanTrials& t) {
  t.weighed.weigh_many_cuts();
  const double scale = t.memory_scale();
  t.weighed.sort(scale);
  for (const Considered& one : t.weighed.all()) {
    const double best = t.best_seconds();
    const bool may_be_best =
        best == kNoTime || (t.weighed.fits(one, scale / kMemoryDoubt) && one.expected.seconds < best);
    if (may_be_best) t.try_one(one, false);
  }
}

/// Collects the result of the search: the tried plans, best first, and the facts for its report.
FoundPlan finish(PlanTrials& t) {
  FoundPlan found;
  found.memory = t.memory;
  found.notes = t.notes;
  std::vector<size_t> order;
  const bool is_beaten = t.is_beaten();
  found.tried = is_beaten ? t.tried.take_unsettled(order) : t.tried.take(order);
  found.bound = t.weighed.bound();
  found.weighed = t.weighed.weighed();
  found.exact = t.weighed.exact();
  if (is_beaten) return found;
  const Considered& best = t.sources[order[0]];
  const CutChoice& cuts = *best.cuts;
  std::vector<Diagnostic> errors;
  CutSpace space(*cuts.network->cuts, cuts.mesh, t.effort, t.cost, best.micro_batches,
                 cuts.network->strategies(cuts.mesh, best.stages, errors));
  found.next_best = next_best_cuts(space, cuts.cuts);
  for (StrategySpec& strategy : found.tried.front().choice.strategies)
    for (const CutAlternative& other : found.next_best)
      if (other.pattern == strategy.pattern) strategy.reason = reason_against(other);
  return found;
}

/// The order in which plans are tried: well-known ones, the best by estimate, then neighbors of the best plan, and ways
/// to save memory if none fits.
FoundPlan search(PlanTrials& t) {
  t.weighed.weigh(0);
  if (t.memory > 0 && !t.weighed.any_fits()) t.weighed.weigh_short_of_memory(false);
  if (t.weighed.all().empty() && !t.weighed.illegal().empty()) throw NoLegalPlan(t.weighed.illegal());
  if (t.memory > 0 && !t.weighed.any_fits() && is_hopeless(t)) t.tried.settle();  // throws NoPlanFits
  try_well_known(t);
  try_best(t, t.limits.first);
  if (t.tried.is_short_of_memory()) {
    t.weighed.weigh_more_micro_batches();
    t.weighed.sort(t.memory_scale());
    try_known_savers(t);
  }
  try_near_limit(t);
  if (!t.tried.fastest()) {
    try_least_memory(t);
    try_near_limit(t);
    if (!t.tried.fastest()) shrink(t);
    t.work_done = 0;  // the first plan that fits is seldom a fast one
  }
  improve(t);
  try_best(t, std::numeric_limits<size_t>::max());
  improve(t);
  if (t.searches_widely()) {
    try_many_cuts(t);
    improve(t);
  }
  try_near_limit(t);
  try_some_blocks(t);
  if (!t.is_beaten()) {
    polish(t, kMostPolished);
    try_bucket_sizes(t);
  }
  return finish(t);
}

}  // namespace

FoundPlan find_plan(const JobSpec& job, const DataShapes& data, const CostModel& cost, const PlanLimits& limits,
                    const TryPlan& try_plan) {
  if (job.parallel.search.algorithm == SearchAlgorithm::exhaustive)
    return find_exhaustively(job, data, cost, limits.memory, try_plan);
  PlanTrials trials(job, data, cost, limits, try_plan);
  return search(trials);
}

void add_plans(FoundPlan other, FoundPlan& found) {
  std::set<std::string> known;
  for (const TriedPlan& plan : found.tried) known.insert(key_of(plan.choice));
  for (TriedPlan& plan : other.tried)
    if (known.insert(key_of(plan.choice)).second) found.tried.push_back(std::move(plan));
  const auto place = [&](const TriedPlan& plan) {
    const Trial& trial = plan.trial;
    if (trial.fits(found.memory)) return std::pair{0, trial.seconds};
    return trial.fault.empty() ? std::pair{1, static_cast<double>(trial.memory)} : std::pair{2, 0.0};
  };
  std::stable_sort(found.tried.begin() + 1, found.tried.end(),
                   [&](const TriedPlan& a, const TriedPlan& b) { return place(a) < place(b); });
  found.bound = std::min(found.bound, other.bound);
  found.weighed += other.weighed;
}

}  // namespace trainctl
