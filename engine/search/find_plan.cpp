// The search over all that a job leaves open. For each number of stages and of micro-batches: the best cuts, then
// schedules, levels of optimizer_shard and ways to recompute added up with them; the few best of all are tried.
#include "engine/search/find_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "engine/base/text.h"
#include "engine/plan/plan.h"
#include "engine/search/cut_choices.h"
#include "engine/search/exhaustive.h"
#include "engine/search/loads.h"
#include "engine/search/networks.h"
#include "engine/search/open_choices.h"
#include "engine/search/small_jobs.h"
#include "engine/search/tried_plans.h"

namespace trainctl {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();
/// The search's own sum may be off by this much before a plan that it likes less is not tried.
constexpr double kDoubt = 1.5;
/// The same of a plan that takes long to try.
constexpr double kLongDoubt = 1.05;
/// The same of a plan whose kernels alone, evenly spread, are above it.
constexpr double kBoundDoubt = 1.1;
/// The same of the memory that it expects.
constexpr double kMemoryDoubt = 1.3;

/// How much is tried. Work is layers times micro-batches, which is about what a plan takes to compile and simulate.
struct TrialLimits {
  int64_t most_work;
  int64_t little_work;  ///< tried in any case, so of small networks many plans
  int64_t long_work;    ///< of one plan; see kLongDoubt
  size_t trials;        ///< no more of them once little_work is done
  size_t first;         ///< of these, before changes of the best
};

/// `folded`: plans are tried on fewer blocks, in which a layer's cuts count for many, so fewer plans differ.
TrialLimits limits_of(Effort effort, bool folded) {
  if (effort == Effort::low) return {1'000, 500, 100, 16, 8};
  if (effort == Effort::high) return {400'000, 40'000, 20'000, 600, 100};
  return folded ? TrialLimits{10'000, 1'500, 500, 16, 10} : TrialLimits{10'000, 4'000, 500, 40, 16};
}

/// A choice with the search's own sum of it.
struct Considered {
  int stages = 1, chunks = 1, micro_batches = 1, level = 0;
  Schedule schedule = Schedule::one_f_one_b;
  size_t recompute = 0;  ///< of OpenChoices::recompute_ways
  std::shared_ptr<const CutChoice> cuts;
  Expected expected;
};

int differences(const Considered& a, const Considered& b) {
  return (a.stages != b.stages) + (a.chunks != b.chunks || a.schedule != b.schedule) +
         (a.micro_batches != b.micro_batches) + (a.level != b.level) + (a.recompute != b.recompute) +
         (a.stages == b.stages && a.cuts->name != b.cuts->name);
}

JobSpec without_positions(JobSpec job) {
  job.positions.clear();
  job.source.clear();
  return job;
}

class Search {
 public:
  Search(const JobSpec& job, const DataShapes& data, const CostModel& cost, int64_t memory, const TryPlan& try_plan)
      : job_(job),
        bare_(without_positions(job)),
        cost_(cost),
        memory_(memory),
        try_plan_(try_plan),
        effort_(job.parallel.search.effort),
        networks_(job, data, cost),
        small_(bare_, networks_, cost),
        limits_(limits_of(effort_, small_.leaves_out_blocks())),
        open_(job, networks_, found_.notes),
        bytes_(weight_bytes(job)),
        cut_choices_(job, networks_, cost, bytes_),
        tried_(job, memory, try_plan) {
    found_.memory = memory;
  }

  FoundPlan run() {
    weigh_all(0);
    if (memory_ > 0 && !any_fits()) weigh_short_of_memory(false);
    if (considered_.empty() && !illegal_.empty()) throw SpecError(illegal_);
    try_named();
    try_best(limits_.first);
    if (tried_.is_short_of_memory()) weigh_more_micro_batches();
    if (!tried_.fastest()) try_least_memory();
    if (!tried_.fastest()) shrink();
    improve();
    try_best(std::numeric_limits<size_t>::max());
    improve();
    return finish();
  }

 private:
  // ---- weighing -----------------------------------------------------------------------------------

  /// Stages and micro-batches, with a time by the search's own sum that none of their plans is below.
  struct Pipeline {
    int stages = 1, micro_batches = 1;
    double least = 0;
  };

  /// Those that can be fast first.
  std::vector<Pipeline> pipelines() {
    std::vector<Pipeline> all;
    const bool counts_starts = starts_count();
    for (int stages : open_.stage_counts()) {
      if (job_.launch.ranks % stages != 0) continue;
      for (int m : open_.micro_batch_counts()) {
        const std::shared_ptr<const Network> network = networks_.of(m);
        double idle = kInfinite;
        for (const auto& [schedule, chunks] : open_.schedules(stages, m)) {
          const double bound = least_seconds(network->least, job_.launch.ranks, stages, m, schedule);
          found_.bound = found_.bound == 0 ? bound : std::min(found_.bound, bound);
          idle = std::min(idle, waits(schedule, stages, chunks));
        }
        const double launches = counts_starts ? network->launch_seconds / stages : 0;
        const double of_micro_batch = network->kernel_seconds / job_.launch.ranks + launches;
        all.push_back({stages, m, of_micro_batch * (m + idle)});
      }
    }
    // The sums of one stage are all but equal.
    const auto rank = [](const Pipeline& one) { return one.stages == 1 ? 0 : one.least; };
    std::stable_sort(all.begin(), all.end(), [&](const auto& a, const auto& b) { return rank(a) < rank(b); });
    return all;
  }

  /// True of a large network whose kernels take longer than starting them. Of short kernels the sum of all starts says
  /// little, since many are fused.
  bool starts_count() {
    const std::shared_ptr<const Network> network = networks_.of(open_.micro_batch_counts().front());
    return small_.leaves_out_blocks() && network->launch_seconds < network->kernel_seconds / job_.launch.ranks;
  }

  void weigh_all(double seconds_per_byte) {
    const double doubt = starts_count() ? kLongDoubt : kBoundDoubt;
    double best = kInfinite;
    bool one_stage_fits = false;
    for (const Pipeline& pipeline : pipelines()) {
      if (pipeline.least > best * doubt || (pipeline.stages == 1 && one_stage_fits && !saves_memory_)) continue;
      const double here = weigh(pipeline.stages, pipeline.micro_batches, seconds_per_byte);
      best = std::min(best, here);
      one_stage_fits = one_stage_fits || here < kInfinite;
    }
  }

  /// More micro-batches of one stage only save memory, so they are left out until a plan that is tried lacks it.
  void weigh_more_micro_batches() {
    saves_memory_ = true;
    weigh_all(0);
    sort_considered();
  }

  /// The expected time of the best that fits in any case.
  double weigh(int stages, int micro_batches, double seconds_per_byte) {
    double best = kInfinite;
    for (const std::shared_ptr<const CutChoice>& cuts :
         cut_choices_.of(stages, micro_batches, seconds_per_byte, illegal_)) {
      found_.exact = found_.exact && cuts->cuts.exact;
      const std::vector<LayerLoad> loads =
          loads_of(*cuts->network->cuts, job_, networks_.repeats(), cuts->mesh, cuts->cuts, cost_);
      if (recomputed_.empty())
        for (const Recompute& way : open_.recompute_ways()) recomputed_.push_back(recomputed(way, loads));
      for (size_t way = 0; way < open_.recompute_ways().size(); ++way) {
        StepSum step(loads, recomputed_[way], bytes_, cost_.machine());
        for (const auto& [schedule, chunks] : open_.schedules(stages, micro_batches))
          for (int level : open_.levels(cuts->mesh.size())) {
            Considered one{stages, chunks, micro_batches, level, schedule, way, cuts, {}};
            one.expected = step.of(header_of(one));
            ++found_.weighed;
            if (fits(one, kMemoryDoubt)) best = std::min(best, one.expected.seconds);
            considered_.push_back(std::move(one));
          }
      }
    }
    return best;
  }

  static std::vector<bool> recomputed(const Recompute& rules, const std::vector<LayerLoad>& loads) {
    std::vector<bool> result;
    for (const LayerLoad& load : loads) result.push_back(rule_for(rules, load.name, false) != nullptr);
    return result;
  }

  bool fits(const Considered& one, double scale = 1) const {
    return memory_ <= 0 || scale * one.expected.memory <= static_cast<double>(memory_);
  }
  bool any_fits() const {
    return std::any_of(considered_.begin(), considered_.end(), [&](const Considered& one) { return fits(one); });
  }

  /// Cuts that hold less: memory gets a price, which rises until something is expected to fit, or to the end.
  void weigh_short_of_memory(bool to_the_end) {
    double fastest = kInfinite, least = kInfinite;
    for (const Considered& one : considered_) {
      fastest = std::min(fastest, one.expected.seconds);
      least = std::min(least, one.expected.memory);
    }
    for (double part : {0.1, 1.0, 10.0}) {
      weigh_all(part * fastest / least);
      if (!to_the_end && any_fits()) break;
    }
  }

  /// What may fit comes first, by its time; then the rest, by its memory.
  void sort_considered() {
    const auto rank = [&](const Considered& one) {
      return fits(one, memory_scale_ / kMemoryDoubt) ? std::pair{0, one.expected.seconds}
                                                     : std::pair{1, one.expected.memory};
    };
    std::stable_sort(considered_.begin(), considered_.end(),
                     [&](const Considered& a, const Considered& b) { return rank(a) < rank(b); });
  }

  // ---- trying -------------------------------------------------------------------------------------

  /// All but the cuts.
  PlanChoice header_of(const Considered& one) const {
    return {.stages = one.stages,
            .chunks = one.chunks,
            .schedule = one.schedule,
            .micro_batches = one.micro_batches,
            .optimizer_shard_level = one.level,
            .stage_config = {},
            .strategies = {},
            .recompute = {}};
  }

  PlanChoice choice_of(const Considered& one) const {
    PlanChoice choice = header_of(one);
    choice.stage_config = job_.parallel.stage_config;
    choice.recompute = open_.recompute_ways()[one.recompute];
    const CutChoice& cuts = *one.cuts;
    if (cuts.mesh.size() == 1) return choice;
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
    return choice;
  }

  /// True if no more than this may be tried, of plans that cost this work. There are more ways to save memory than
  /// time.
  bool is_enough(int64_t work, size_t most) const {
    if (work_ + work > limits_.most_work) return true;
    return tried_.size() >= (tried_.is_short_of_memory() ? 3 * most : most) && work_ + work > limits_.little_work;
  }

  /// What takes long to try must be nearly as fast, by the search's own sum, as the best that was tried.
  bool is_too_slow(const Considered& one, int64_t work) const {
    const std::optional<size_t> best = tried_.fastest();
    return work > limits_.long_work && best && one.expected.seconds > kLongDoubt * tried_[*best].expected;
  }

  /// Null if it has been tried, or if enough has been.
  const TriedPlan* try_one(const Considered& one, bool always) {
    if (!always && is_enough(0, limits_.trials)) return nullptr;
    PlanChoice choice = choice_of(one);
    if (tried_.is_known(choice)) return nullptr;
    const SmallJobs::Sizes sizes = small_.sizes_of(choice);
    if (!always && (is_enough(sizes.work, limits_.trials) || is_too_slow(one, sizes.work))) return nullptr;
    work_ += sizes.work;
    Trial trial = small_.sum_of(choice, sizes, try_plan_);
    if (!trial.fault.empty() && !sizes.is_whole())
      trial = try_plan_(with_choice(bare_, choice));  // the job names layers that a small one does not have
    std::string name = fmt::format("{}; {}", one.cuts->name, to_string(choice));
    sources_.push_back(one);
    return &tried_[tried_.add({std::move(name), std::move(choice), one.expected.seconds, std::move(trial)})];
  }

  /// Plans of one stage that people know: data parallel at each level of optimizer_shard, tensor parallel at the best,
  /// and all ranks doing the same, which is the fastest where messages take longer than the work.
  void try_named() {
    for (const Considered& one : considered_) {
      if (one.cuts->known_as != KnownAs::data_parallel || !is_plain(one)) continue;
      const TriedPlan* tried = try_one(one, true);
      if (tried != nullptr && tried->trial.fault.empty())
        memory_scale_ = static_cast<double>(tried->trial.memory) / one.expected.memory;
    }
    sort_considered();
    for (const KnownAs known : {KnownAs::tensor_parallel, KnownAs::whole}) {
      const auto other = std::find_if(considered_.begin(), considered_.end(), [&](const Considered& one) {
        return one.cuts->known_as == known && is_plain(one);
      });
      if (other != considered_.end()) try_one(*other, true);
    }
  }

  bool is_plain(const Considered& one) const {
    return one.stages == 1 && one.recompute == 0 && one.micro_batches == open_.micro_batch_counts().front();
  }

  /// The best of each number of stages and way to cut, then the second best of each, and so on: plans that differ
  /// compete before plans alike.
  std::vector<const Considered*> in_turns() const {
    std::map<std::pair<int, std::string_view>, int> turns;
    std::vector<std::pair<int, const Considered*>> all;
    for (const Considered& one : considered_) all.emplace_back(turns[{one.stages, one.cuts->name}]++, &one);
    std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    std::vector<const Considered*> order;
    for (const auto& [turn, one] : all) order.push_back(one);
    return order;
  }

  /// Until so many plans have been tried.
  void try_best(size_t most) {
    double best = kInfinite;
    for (const Considered* one : in_turns()) {
      if (tried_.fastest() && tried_.size() >= most) break;
      if (one->expected.seconds > best * kDoubt) continue;
      const TriedPlan* tried = try_one(*one, false);
      if (tried != nullptr && tried->trial.fits(memory_)) best = std::min(best, tried->expected);
    }
  }

  /// The search's own sum was wrong about memory: cuts that hold least, and of all choices those that take least.
  void try_least_memory() {
    if (memory_ <= 0) return;
    weigh_short_of_memory(true);
    std::stable_sort(considered_.begin(), considered_.end(),
                     [](const Considered& a, const Considered& b) { return a.expected.memory < b.expected.memory; });
    const size_t before = tried_.size();
    for (const Considered& one : considered_) {
      if (tried_.fastest() || (tried_.size() >= before + limits_.trials && work_ > limits_.most_work)) break;
      try_one(one, true);
    }
    sort_considered();
  }

  /// Single changes of the plan that needs least, until one fits or none needs less. At least as much is tried as of a
  /// search that finds a plan, before it is said that none fits.
  void shrink() {
    const size_t most = tried_.size() + 2 * limits_.trials;
    while (memory_ > 0 && !tried_.fastest()) {
      const std::optional<size_t> from = tried_.smallest();
      if (!from) return;
      const Considered base = sources_[*from];
      for (const Considered& one : considered_) {
        if (tried_.fastest() || (tried_.size() >= most && work_ > 2 * limits_.most_work)) return;
        if (differences(one, base) == 1 && one.expected.memory <= base.expected.memory * kMemoryDoubt)
          try_one(one, true);
      }
      if (tried_.smallest() == from) change_cuts(base, true);
      if (tried_.smallest() == from) return;
    }
  }

  /// Single changes of the best, as long as one is better.
  void improve() {
    while (const std::optional<size_t> from = tried_.fastest()) {
      const Considered base = sources_[*from];
      for (const Considered& one : considered_)
        if (differences(one, base) == 1 && one.expected.seconds <= base.expected.seconds * kDoubt) try_one(one, false);
      if (tried_.fastest() == from) change_cuts(base);
      if (tried_.fastest() == from) return;
    }
  }

  /// Other cuts of one layer, or of layers alike.
  void change_cuts(const Considered& base, bool always = false) {
    const CutChoice& cuts = *base.cuts;
    if (cuts.mesh.size() == 1 || (!always && is_enough(0, limits_.trials)) ||
        job_.parallel.search.algorithm == SearchAlgorithm::sharding_propagation)
      return;
    std::vector<Diagnostic> errors;
    CutSpace space(*cuts.network->cuts, cuts.mesh, effort_, cost_, base.micro_batches,
                   cuts.network->strategies(cuts.mesh, base.stages, errors));
    for (const CutAlternative& other : other_cuts(space, cuts.cuts)) {
      Considered one = base;
      one.expected.seconds += std::max(other.seconds, 0.0) * base.micro_batches / base.stages;
      if (!always && one.expected.seconds > base.expected.seconds * kDoubt) continue;
      const std::string name = cuts.name.substr(0, cuts.name.find(" with ")) + " with other cuts of " + other.pattern;
      one.cuts = std::make_shared<CutChoice>(CutChoice{name, KnownAs::nothing, cuts.network, cuts.mesh,
                                                       with_other(*cuts.network->cuts, cuts.cuts, other)});
      try_one(one, always);
    }
  }

  FoundPlan finish() {
    std::vector<size_t> order;
    found_.tried = tried_.take(order);
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
  const WeightBytes bytes_;
  CutChoices cut_choices_;
  std::vector<std::vector<bool>> recomputed_;  ///< by way to recompute, and layer; empty: not known yet
  std::vector<Considered> considered_;
  TriedPlans tried_;
  std::vector<Considered> sources_;  ///< of tried_
  double memory_scale_ = 1;          ///< what a plan takes over what was expected of it, as far as is known
  bool saves_memory_ = false;
  int64_t work_ = 0;
  std::vector<Diagnostic> illegal_;
};

}  // namespace

FoundPlan find_plan(const JobSpec& job, const DataShapes& data, const CostModel& cost, int64_t memory,
                    const TryPlan& try_plan) {
  if (job.parallel.search.algorithm == SearchAlgorithm::exhaustive)
    return find_exhaustively(job, data, cost, memory, try_plan);
  return Search(job, data, cost, memory, try_plan).run();
}

}  // namespace trainctl
