// The search over all that a job leaves open. For each number of stages and of micro-batches: the best cuts, then
// schedules, levels of optimizer_shard and ways to recompute added up with them; the few best of all are tried.
#include "engine/search/find_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "engine/base/text.h"
#include "engine/plan/plan.h"
#include "engine/search/choices/open_choices.h"
#include "engine/search/choices/some_blocks.h"
#include "engine/search/choices/weighed_choices.h"
#include "engine/search/networks.h"
#include "engine/search/trials/exhaustive.h"
#include "engine/search/trials/recompute_mixes.h"
#include "engine/search/trials/small_jobs.h"
#include "engine/search/trials/tried_plans.h"

namespace trainctl {
namespace {

constexpr double kNoTime = std::numeric_limits<double>::infinity();
/// A plan that people know is tried unless its sum is this many times the best.
constexpr double kKnownDoubt = 3;
/// Number of well-known plans that save memory in the same way, at each level of optimizer_shard.
constexpr size_t kKnownSavers = 2;
/// Sizes of buckets are tried if less waiting for them may save this part of the step.
constexpr double kBucketsMatter = 0.02;
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
/// A job of no more layers is searched widely if it is short of memory, with this many times as much work.
constexpr int kFewLayers = 12;
constexpr int64_t kWideWork = 2;

/// A plan that is likely to take this many times as long as the best is not tried.
struct Doubts {
  double first = 1.5;     ///< the best plan of its cuts in one stage
  double other = 1.5;     ///< any other plan
  double lengthy = 1.2;   ///< a plan that takes long to try
  double cuts = 1.5;      ///< the best plan with other cuts of one layer
  double least_part = 0;  ///< share of the step; a layer that takes less gets no other cuts
  bool any_saver = true;  ///< true: plans that save memory are tried even if there is enough
};
/// Doubts for large networks of long kernels: each trial takes long, and sums are right to a few per cent.
constexpr Doubts kFewDoubts = {1.12, 1.05, 1.03, 1.02, 0.01, false};

/// Limits of the search. Work is layers times micro-batches, which is roughly proportional to the time of compiling and
/// simulating a plan.
struct TrialLimits {
  int64_t most_work;
  int64_t little_work;  ///< tried in any case, so of small networks many plans
  int64_t long_work;    ///< work of one plan; see Doubts::lengthy
  size_t trials;        ///< no more trials once little_work is done
  size_t first;         ///< trials before changes of the best
};

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

class PlanSearch {
 public:
  PlanSearch(const JobSpec& job, const DataShapes& data, const CostModel& cost, int64_t memory, const TryPlan& try_plan)
      : job_(job),
        bare_(without_positions(job)),
        cost_(cost),
        memory_(memory),
        try_plan_(try_plan),
        effort_(job.parallel.search.effort),
        networks_(job, data, cost),
        small_(bare_, networks_, cost),
        limits_(limits_of(effort_, small_.leaves_out_blocks())),
        open_(job, networks_, cost.machine(), found_.notes),
        weighed_(job, networks_, open_, cost, memory, small_.leaves_out_blocks()),
        doubts_(effort_ != Effort::high && weighed_.has_long_kernels() ? kFewDoubts : Doubts{}),
        tried_(job, memory, try_plan) {
    found_.memory = memory;
  }

  FoundPlan run() {
    weighed_.weigh(0);
    if (memory_ > 0 && !weighed_.any_fits()) weighed_.weigh_short_of_memory(false);
    if (weighed_.all().empty() && !weighed_.illegal().empty()) throw SpecError(weighed_.illegal());
    try_named();
    try_best(limits_.first);
    if (tried_.is_short_of_memory()) {
      weighed_.weigh_more_micro_batches();
      weighed_.sort(memory_scale());
      try_known_savers();
    }
    if (!tried_.fastest()) {
      try_least_memory();
      if (!tried_.fastest()) shrink();
      work_ = 0;  // the first that fits is seldom a fast one
    }
    improve();
    try_best(std::numeric_limits<size_t>::max());
    improve();
    if (searches_widely()) {
      try_many_cuts();
      improve();
    }
    try_some_blocks();
    try_bucket_sizes();
    return finish();
  }

 private:
  /// All but the cuts.
  PlanChoice header_of(const Considered& one) const {
    return {.stages = one.stages,
            .chunks = one.chunks,
            .schedule = one.schedule,
            .micro_batches = one.micro_batches,
            .optimizer_shard = one.shard,
            .bucket_bytes = one.bucket_bytes,
            .stage_config = job_.parallel.stage_config,
            .strategies = {},
            .recompute = one.some ? *one.some : open_.recompute_ways()[one.recompute]};
  }

  void add_cuts(const Considered& one, PlanChoice& choice) const {
    const CutChoice& cuts = *one.cuts;
    if (cuts.mesh.size() == 1) return;
    std::map<std::string, bool> told;
    const Graph& graph = cuts.network->graph;
    for (size_t l = 0; l < graph.layers.size(); ++l) {
      const std::string& pattern = cuts.network->cuts->patterns[l];
      const bool given =
          rule_for(job_.parallel.strategies, graph.layers[l].name, cuts.network->facts[l].is_loss) != nullptr;
      if (!given && told.try_emplace(pattern, true).second)
        choice.strategies.push_back({pattern, cuts_of(cuts.mesh, graph.layers[l], cuts.cuts.of_layer[l]), "", ""});
    }
    for (const StrategySpec& given : job_.parallel.strategies) choice.strategies.push_back(given);
  }

  /// True if no more than this may be tried, of plans that cost this work. There are more ways to save memory than
  /// time.
  bool is_enough(int64_t work, size_t most) const {
    if (searches_widely()) return work_ + work > kWideWork * limits_.most_work;
    if (work_ + work > limits_.most_work) return true;
    return tried_.size() >= (tried_.is_short_of_memory() ? 3 * most : most) && work_ + work > limits_.little_work;
  }

  /// True for a small job that is short of memory: many of all cuts are tried, not only the best of each way to split
  /// the mesh.
  bool searches_widely() const {
    return static_cast<int>(job_.network.size()) <= kFewLayers && tried_.is_short_of_memory() && is_free_to_cut();
  }
  bool is_free_to_cut() const { return job_.parallel.search.algorithm != SearchAlgorithm::sharding_propagation; }

  /// Plans whose sums are off alike: optimizer_shard of level 3 or not, in one stage or in more by this schedule.
  using Kind = std::tuple<bool, bool, Schedule>;
  static Kind kind_of(const Considered& one) { return {one.shard.level == 3, one.stages > 1, one.schedule}; }

  /// Once a plan was found that fits. A sum is taken to be off as the most favoured of its kind was; of a kind that is
  /// new, of those like it.
  bool is_too_slow(const Considered& one, int64_t work, double doubt) const {
    const std::optional<size_t> best = tried_.fastest();
    if (!best) return false;
    const Kind kind = kind_of(one);
    double ratio = kNoTime;
    for (const auto& [other, least] : least_ratio_)
      if (std::get<0>(other) == std::get<0>(kind)) ratio = std::min(ratio, least);
    if (const auto known = least_ratio_.find(kind); known != least_ratio_.end()) ratio = known->second;
    if (work > limits_.long_work) doubt = doubts_.lengthy;
    return ratio < kNoTime && one.expected.seconds * ratio > doubt * tried_[*best].trial.seconds;
  }

  /// Null if it has been tried, or if enough has been.
  const TriedPlan* try_one(const Considered& one, bool always, bool first = false) {
    if (!always && is_enough(0, limits_.trials)) return nullptr;
    if (!always && one.saves_in_vain && !doubts_.any_saver && !tried_.is_short_of_memory()) return nullptr;
    PlanChoice choice = header_of(one);
    const SmallJobs::Sizes sizes = small_.sizes_of(choice);
    if (!always &&
        (is_enough(sizes.work, limits_.trials) || is_too_slow(one, sizes.work, first ? doubts_.first : doubts_.other)))
      return nullptr;
    add_cuts(one, choice);
    if (tried_.is_known(choice)) return nullptr;
    work_ += sizes.work;
    Trial trial = small_.sum_of(choice, sizes, try_plan_);
    // The job may name layers that a small one does not have.
    if (!trial.fault.empty() && !sizes.is_whole()) trial = try_whole(choice);
    return &add(one, std::move(choice), std::move(trial));
  }

  Trial try_whole(const PlanChoice& choice) const {
    return try_plan_(with_choice(bare_, choice), TriedRanks::one_per_stage);
  }

  const TriedPlan& add(const Considered& one, PlanChoice choice, Trial trial) {
    std::string name = fmt::format("{}; {}", one.cuts->name, to_string(choice));
    sources_.push_back(one);
    if (trial.fault.empty()) {
      double& least = least_ratio_.try_emplace(kind_of(one), kNoTime).first->second;
      least = std::min(least, trial.seconds / one.expected.seconds);
    }
    return tried_[tried_.add({std::move(name), std::move(choice), one.expected.seconds, std::move(trial)})];
  }

  /// Plans of one stage that people know: data parallel at each level of optimizer_shard, tensor parallel at the best,
  /// and all ranks doing the same, which is the fastest where messages take longer than the work.
  void try_named() {
    for (const Considered& one : weighed_.all()) {
      if (one.cuts->known_as != KnownAs::data_parallel || !is_plain(one)) continue;
      try_one(one, true);
    }
    weighed_.sort(memory_scale());
    for (const KnownAs known : {KnownAs::tensor_parallel, KnownAs::whole}) {
      const std::vector<Considered>& all = weighed_.all();
      const auto other = std::find_if(
          all.begin(), all.end(), [&](const Considered& one) { return one.cuts->known_as == known && is_plain(one); });
      const std::optional<size_t> best = tried_.fastest();
      if (other != all.end() && !(best && other->expected.seconds > kKnownDoubt * tried_[*best].expected))
        try_one(*other, true);
    }
  }

  /// Data parallel plans as people know them where memory is short: at each level of optimizer_shard, the fastest that
  /// recompute, and that only divide the batch, among those that are expected to fit.
  void try_known_savers() {
    std::map<std::pair<int, bool>, size_t> tried;  // by level, and whether they recompute
    for (size_t i = 0; i < tried_.size(); ++i) {
      const Considered& one = sources_[i];
      if (one.cuts->known_as != KnownAs::data_parallel || !is_plain(one) || !tried_[i].trial.fits(memory_)) continue;
      for (const bool recomputes : {false, true}) tried[{one.shard.level, recomputes}] = kKnownSavers;  // it needs none
    }
    const double scale = memory_scale();
    for (const Considered& one : weighed_.all()) {
      const bool is_known = one.stages == 1 && one.cuts->known_as == KnownAs::data_parallel && !is_plain(one);
      if (!is_known || !weighed_.fits(one, scale) || is_too_slow(one, 0, doubts_.first)) continue;
      size_t& alike = tried[{one.shard.level, one.recompute != 0}];
      if (alike < kKnownSavers && try_one(one, true) != nullptr) ++alike;
    }
  }

  /// Returns the median ratio of the memory that a plan takes to the expected one, over the plans that were tried.
  double memory_scale() const {
    std::vector<double> scales;
    for (size_t i = 0; i < tried_.size(); ++i)
      if (tried_[i].trial.fault.empty())
        scales.push_back(static_cast<double>(tried_[i].trial.memory) / sources_[i].expected.memory);
    if (scales.empty()) return 1;
    const auto middle = scales.begin() + static_cast<std::ptrdiff_t>(scales.size() / 2);
    std::nth_element(scales.begin(), middle, scales.end());
    return *middle;
  }

  bool is_plain(const Considered& one) const {
    return one.stages == 1 && one.recompute == 0 && one.micro_batches == open_.micro_batch_counts().front();
  }

  /// Stops after this number of tried plans.
  void try_best(size_t most) {
    for (const auto& [turn, one] : weighed_.in_turns()) {
      if (tried_.fastest() && tried_.size() >= most) break;
      try_one(*one, false, turn == 0 && one->stages == 1);
    }
  }

  /// The search's own sum was wrong about memory: cuts that hold least, and of all choices those that take least.
  void try_least_memory() {
    if (memory_ <= 0) return;
    weighed_.weigh_short_of_memory(true);
    weighed_.sort_by_memory();
    const size_t before = tried_.size();
    for (const Considered& one : weighed_.all()) {
      if (tried_.fastest() || (tried_.size() >= before + limits_.trials && work_ > limits_.most_work)) break;
      try_one(one, true);
    }
    weighed_.sort(memory_scale());
  }

  /// Single changes of the plan that needs least, until one fits or none needs less. At least as much is tried as of a
  /// search that finds a plan, before it is said that none fits.
  void shrink() {
    const size_t most = tried_.size() + 2 * limits_.trials;
    while (memory_ > 0 && !tried_.fastest()) {
      const std::optional<size_t> from = tried_.smallest();
      if (!from) return;
      const Considered base = sources_[*from];
      for (const Considered& one : weighed_.all()) {
        if (tried_.fastest() || (tried_.size() >= most && work_ > 2 * limits_.most_work)) return;
        if (differences(one, base) != 1) continue;
        if (one.expected.memory <= base.expected.memory * kMemoryDoubt) try_one(one, true);
      }
      if (tried_.smallest() == from) change_cuts(*from, true);
      if (tried_.smallest() == from) return;
    }
  }

  /// Tries the plans that are expected to be fast first, as long as they may be faster than the best.
  void try_many_cuts() {
    weighed_.weigh_many_cuts();
    const double scale = memory_scale();
    weighed_.sort(scale);
    for (const Considered& one : weighed_.all()) {
      const std::optional<size_t> best = tried_.fastest();
      const bool may_be_best =
          !best || (weighed_.fits(one, scale / kMemoryDoubt) && one.expected.seconds < tried_[*best].trial.seconds);
      if (may_be_best) try_one(one, false);
    }
  }

  /// Single changes of the best, as long as one is better.
  void improve() {
    while (const std::optional<size_t> from = tried_.fastest()) {
      const Considered base = sources_[*from];
      for (const Considered& one : weighed_.all())
        if (differences(one, base) == 1) try_one(one, false);
      if (tried_.fastest() == from) change_cuts(*from);
      if (tried_.fastest() == from) return;
    }
  }

  /// Where memory is short: what fits if all blocks recompute may fit if some do.
  void try_some_blocks() {
    if (num_blocks(networks_.repeats()) < 2 || !tried_.is_short_of_memory()) return;
    const int64_t most = work_ + limits_.most_work;
    try_mixes(most);
    if (try_other_cuts()) try_mixes(most);
  }

  /// Other cuts of the best plan, and of the fastest one that nearly fits. Returns true if any were tried.
  bool try_other_cuts() {
    const size_t before = tried_.size();
    if (const std::optional<size_t> best = tried_.fastest()) try_other_cuts(sources_[*best]);
    if (const std::optional<size_t> nearly = fastest_that_nearly_fits()) try_other_cuts(sources_[*nearly]);
    return tried_.size() > before;
  }

  std::optional<size_t> fastest_that_nearly_fits() const {
    std::optional<size_t> fastest = tried_.fastest();
    for (size_t i = 0; i < tried_.size(); ++i) {
      const Trial& trial = tried_[i].trial;
      const bool nearly =
          trial.fault.empty() && static_cast<double>(trial.memory) <= kNearlyFits * static_cast<double>(memory_);
      if (nearly && (!fastest || trial.seconds < tried_[*fastest].trial.seconds)) fastest = i;
    }
    return fastest;
  }

  /// Continues as long as they are expected to take about as long as those of `base`, without recompute. `base` is a
  /// copy because trials are added to sources_.
  void try_other_cuts(const Considered base) {
    std::vector<Considered> others;
    double own = kNoTime;
    for (const Considered& one : weighed_.all()) {
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
      if (others[i].expected.seconds <= kOtherCutsDoubt * own) try_one(others[i], true);
  }

  void try_mixes(int64_t most) {
    const int blocks = num_blocks(networks_.repeats());
    int mixes = 0, ways = 0;
    for (const Considered& one : untried_ways(tried_, sources_, weighed_.all(), memory_scale(), memory_)) {
      const std::optional<size_t> best = tried_.fastest();
      if (best && one.expected.seconds >= tried_[*best].trial.seconds) break;
      if (++ways > kMostMixes || work_ > most) break;
      try_one(one, true);
    }
    for (const RecomputeMix& mix : recompute_mixes(tried_, sources_, weighed_.all(), memory_scale(), memory_, blocks)) {
      const double seconds = mix.seconds_with(mix.count_for(memory_));
      const std::optional<size_t> best = tried_.fastest();
      if (best && seconds >= (1 - kMixMatters) * tried_[*best].trial.seconds) break;
      if (++mixes > kMostMixes || !try_mix(mix, most)) break;
    }
  }

  /// Tries numbers of blocks until one fits and one less does not. Returns false if it would be more work than `most`.
  bool try_mix(const RecomputeMix& mix, int64_t most) {
    const std::vector<Recompute>& ways = open_.recompute_ways();
    int too_few = 0, enough = mix.blocks, count = mix.count_for(memory_);
    for (int round = 0; round < kMostCounts && too_few < count && count < enough; ++round) {
      Considered one = mix.plan;
      one.some = std::make_shared<Recompute>(recompute_of_some(job_.network, networks_.repeats(), ways[mix.less.way],
                                                               ways[mix.more.way], count, one.stages > 1));
      PlanChoice choice = header_of(one);
      const SmallJobs::Sizes sizes = small_.sizes_of_all_blocks(choice);
      if (work_ + sizes.work > most) return false;
      add_cuts(one, choice);
      if (tried_.is_known(choice)) return true;
      work_ += sizes.work;
      const Trial trial = small_.sum_of(choice, sizes, try_plan_);
      add(one, std::move(choice), trial);
      if (!trial.fault.empty()) return true;
      (trial.fits(memory_) ? enough : too_few) = count;
      const double missing = static_cast<double>(trial.memory - memory_) / mix.memory_per_block();
      if (trial.fits(memory_) && missing > -1) return true;  // one block less would not fit
      count = std::clamp(count + static_cast<int>(std::ceil(missing)), too_few + 1, std::max(too_few + 1, enough - 1));
    }
    return true;
  }

  /// By pattern: the part of the step that its layers take, with their share of the buckets that all wait for.
  std::map<std::string_view, double> parts_of_step(const Considered& plan, const Trial& trial) const {
    std::map<std::string_view, std::string_view> patterns;
    for (size_t l = 0; l < job_.network.size(); ++l)
      patterns[job_.network[l].name] = networks_.repeats().places[l].pattern;
    const std::vector<LayerLoad> loads = weighed_.loads(*plan.cuts);
    double elements = 0;
    for (const LayerLoad& load : loads) elements += load.elements;
    std::map<std::string_view, double> parts;
    for (const LayerLoad& load : loads) {
      const auto known = patterns.find(load.name);
      parts[known == patterns.end() ? std::string_view(load.name) : known->second] +=
          (load.seconds * plan.micro_batches + load.elements / elements * trial.bucket_seconds) / trial.seconds;
    }
    return parts;
  }

  /// Other cuts of one layer, or of layers alike.
  void change_cuts(size_t from, bool always = false) {
    const Considered base = sources_[from];
    const CutChoice& cuts = *base.cuts;
    if (cuts.mesh.size() == 1 || (!always && is_enough(0, limits_.trials)) || !is_free_to_cut()) return;
    std::vector<Diagnostic> errors;
    CutSpace space(*cuts.network->cuts, cuts.mesh, effort_, cost_, base.micro_batches,
                   cuts.network->strategies(cuts.mesh, base.stages, errors));
    const std::map<std::string_view, double> parts = parts_of_step(base, tried_[from].trial);
    for (const CutAlternative& other : other_cuts(space, cuts.cuts)) {
      const auto part = parts.find(other.pattern);
      if (!always && part != parts.end() && part->second < doubts_.least_part) continue;
      Considered one = base;
      one.expected.seconds += std::max(other.seconds, 0.0) * base.micro_batches / base.stages;
      if (!always && one.expected.seconds > base.expected.seconds * doubts_.cuts) continue;
      const std::string name = cuts.name.substr(0, cuts.name.find(" with ")) + " with other cuts of " + other.pattern;
      one.cuts = std::make_shared<CutChoice>(CutChoice{name, KnownAs::nothing, cuts.network, cuts.mesh,
                                                       with_other(*cuts.network->cuts, cuts.cuts, other)});
      try_one(one, always);
    }
  }

  /// The fastest that would be faster than the best if ranks waited less for its buckets; often the best itself.
  std::optional<size_t> waits_for_buckets() {
    const double best = tried_[tried_.settle()].trial.seconds;
    std::optional<size_t> fastest;
    for (size_t i = 0; i < tried_.size(); ++i) {
      const Trial& trial = tried_[i].trial;
      const double waits = trial.bucket_seconds;
      const bool has_buckets = sources_[i].cuts->mesh.size() > 1 && sources_[i].shard.level < 3;
      if (!has_buckets || !trial.fits(memory_) || trial.seconds - waits > (1 - kBucketsMatter) * best) continue;
      if (!fastest || trial.seconds < tried_[*fastest].trial.seconds) fastest = i;
    }
    return fastest;
  }

  /// The search's own sum knows nothing of buckets. Few blocks do not fill large ones, so the whole network is tried.
  void try_bucket_sizes() {
    if (open_.bucket_sizes().size() == 1) return;
    const std::optional<size_t> from = waits_for_buckets();
    if (!from) return;
    const Considered base = sources_[*from];
    double elements = 0;
    for (const LayerLoad& load : weighed_.loads(*base.cuts)) elements += load.elements;
    const double most = elements * weighed_.bytes().gradient;
    for (const int64_t size : open_.bucket_sizes()) {
      const auto bytes = static_cast<double>(size), own = static_cast<double>(kBucketBytes);
      if (size == base.bucket_bytes || std::min(bytes, own) >= most) continue;  // one bucket, whichever the size
      Considered one = base;
      one.bucket_bytes = size;
      PlanChoice choice = header_of(one);
      add_cuts(one, choice);
      if (tried_.is_known(choice)) continue;
      Trial trial = try_whole(choice);
      add(one, std::move(choice), std::move(trial));
    }
  }

  FoundPlan finish() {
    std::vector<size_t> order;
    found_.tried = tried_.take(order);
    found_.bound = weighed_.bound();
    found_.weighed = weighed_.weighed();
    found_.exact = weighed_.exact();
    const Considered& best = sources_[order[0]];
    const CutChoice& cuts = *best.cuts;
    std::vector<Diagnostic> errors;
    CutSpace space(*cuts.network->cuts, cuts.mesh, effort_, cost_, best.micro_batches,
                   cuts.network->strategies(cuts.mesh, best.stages, errors));
    found_.next_best = next_best_cuts(space, cuts.cuts);
    for (StrategySpec& strategy : found_.tried.front().choice.strategies)
      for (const CutAlternative& other : found_.next_best)
        if (other.pattern == strategy.pattern) strategy.reason = reason_against(other);
    return std::move(found_);
  }

  const JobSpec& job_;
  const JobSpec bare_;  ///< is copied often
  const CostModel& cost_;
  const int64_t memory_;
  const TryPlan& try_plan_;
  const Effort effort_;
  FoundPlan found_;
  Networks networks_;
  SmallJobs small_;
  const TrialLimits limits_;
  const OpenChoices open_;
  WeighedChoices weighed_;
  const Doubts doubts_;
  TriedPlans tried_;
  std::vector<Considered> sources_;     ///< choice that each plan of tried_ was made from
  std::map<Kind, double> least_ratio_;  ///< least ratio of simulated to expected seconds
  int64_t work_ = 0;
};

}  // namespace

FoundPlan find_plan(const JobSpec& job, const DataShapes& data, const CostModel& cost, int64_t memory,
                    const TryPlan& try_plan) {
  if (job.parallel.search.algorithm == SearchAlgorithm::exhaustive)
    return find_exhaustively(job, data, cost, memory, try_plan);
  return PlanSearch(job, data, cost, memory, try_plan).run();
}

}  // namespace trainctl
