// Searches for the fastest plan of a job (parallel.mode: auto_parallel). find_plan searches with a given number of
// ranks per sequence and given offloading; this file tries several of both, and searches again with fewer choices where
// memory is short.
#include "engine/planning/search_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/text.h"
#include "engine/planning/compile_job.h"
#include "engine/planning/exchanging_choice.h"
#include "engine/planning/shared_rows.h"
#include "engine/search/choices/fewer_choices.h"
#include "engine/search/no_plan_fits.h"

namespace trainctl {
namespace {

/// A plan of a later search (with shared sequences, offloading or fewer choices) replaces an earlier one only if it is
/// faster by more than this fraction.
constexpr double kSimpler = 0.005;
/// Offloading is tried for kMostOffloaded plans that do not fit. Each must take less than kMuchFaster times the time of
/// the best plan that fits, and each next one needs kMuchSmaller times the memory of the previous one.
constexpr size_t kMostOffloaded = 3;
constexpr double kMuchFaster = 0.97, kMuchSmaller = 1.05;
/// Searches with fewer choices found plans that take up to 4 % less time. They are left out if the search with all
/// choices found a plan that takes this many times as long as the best one.
constexpr double kMayBeBest = 1.05;

constexpr double kNoTime = std::numeric_limits<double>::infinity();

/// The result of one search.
struct Searched {
  FoundPlan found;
  JobSpec spec;  ///< with the best plan
  Trials::KnownGraph known;

  double seconds() const { return found.best().trial.seconds; }
};

/// Candidates for offloading if no plan fits otherwise: each part that the job keeps on its devices, and then both.
std::vector<OffloadSpec> offload_ways(const JobSpec& spec, const Machine& machine) {
  if (machine.kind != DeviceKind::cuda || spec.servers() > 0) return {};
  const OffloadSpec& given = spec.parallel.offload;
  OffloadSpec optimizer = given, activations = given;
  optimizer.optimizer = StatePlace::host;
  if (given.activations.empty()) activations.activations.push_back({"*", "parallel.offload.activations"});
  OffloadSpec both = activations;
  both.optimizer = StatePlace::host;
  if (given.optimizer == StatePlace::host && !given.activations.empty()) return {};
  if (given.optimizer == StatePlace::host) return {activations};
  if (!given.activations.empty()) return {optimizer};
  return {optimizer, activations, both};
}

std::string to_string(const OffloadSpec& offload) {
  std::vector<std::string> parts;
  if (offload.optimizer == StatePlace::host) parts.emplace_back("optimizer");
  if (!offload.activations.empty()) parts.emplace_back("activations");
  return "offload " + join(parts, " and ");
}

std::string takes(double seconds) {
  return seconds < 1 ? fmt::format("takes {:.2f} ms per step", seconds * 1e3)
                     : fmt::format("takes {:.2f} s per step", seconds);
}

class PlanSearch {
 public:
  PlanSearch(const PlannedJob& job, int64_t memory, const FindPlan& find) : job_(job), memory_(memory), find_(find) {}

  Searched run(const JobSpec& given) {
    search_sizes(given);
    const std::vector<OffloadSpec> ways = offload_ways(given, job_.cost.machine());
    if (best_)
      search_faster_offloading(given, ways);
    else
      search_fitting_offloading(given, ways);
    if (!best_) throw NoPlanFits(given, memory_, smallest_->needed(), smallest_plan_);
    return std::move(*best_);
  }

 private:
  /// A plan that would be fast but does not fit.
  struct TooLarge {
    std::shared_ptr<const JobSpec> spec;  ///< without the choice
    PlanChoice choice;
    double seconds = 0;
    int64_t memory = 0;
  };

  /// Called if no plan fits without offloading. Searches with all parts on the host, which needs the least device
  /// memory, and then with each part alone.
  void search_fitting_offloading(const JobSpec& given, const std::vector<OffloadSpec>& ways) {
    if (!ways.empty()) search_offloading(given, ways.back());
    if (!best_ || ways.size() == 1) return;
    Searched both = std::move(*best_);
    best_.reset();
    least_ = kNoTime;
    for (size_t w = 0; w + 1 < ways.size(); ++w) search_offloading(given, ways[w]);
    if (!best_ || both.seconds() < best_->seconds() * (1 - kSimpler)) best_ = std::move(both);
  }

  /// Searches with an offloading that makes a plan fit which is then faster than the best plan.
  void search_faster_offloading(const JobSpec& given, const std::vector<OffloadSpec>& ways) {
    const double without = best_->seconds();
    const std::vector<TooLarge> plans = plans_to_offload();
    for (const OffloadSpec& offload : ways) {
      if (!makes_faster(plans, offload)) continue;
      search_offloading(given, offload);
      if (best_->seconds() >= without) continue;
      best_->found.notes.push_back(fmt::format("{}: the best plan without it {}", to_string(offload), takes(without)));
      return;
    }
  }

  /// Returns up to kMostOffloaded plans of too_large_, the smallest first.
  std::vector<TooLarge> plans_to_offload() {
    std::stable_sort(too_large_.begin(), too_large_.end(),
                     [](const TooLarge& a, const TooLarge& b) { return a.memory < b.memory; });
    auto last = static_cast<double>(memory_);
    std::vector<TooLarge> plans;
    for (TooLarge& plan : too_large_) {
      const auto memory = static_cast<double>(plan.memory);
      if (plan.seconds >= kMuchFaster * best_->seconds() || memory < kMuchSmaller * last) continue;
      last = memory;
      plans.push_back(std::move(plan));
      if (plans.size() == kMostOffloaded) break;
    }
    return plans;
  }

  /// Returns true if one of the plans, with this offloading, fits and is faster than the best plan.
  bool makes_faster(const std::vector<TooLarge>& plans, const OffloadSpec& offload) const {
    Trials trials(job_);
    return std::any_of(plans.begin(), plans.end(), [&](const TooLarge& plan) {
      JobSpec spec = with_choice(*plan.spec, plan.choice);
      spec.parallel.offload = offload;
      const Trial trial = trials.run(std::move(spec), TriedRanks::one_per_stage);
      return trial.fits(memory_) && trial.seconds < best_->seconds() * (1 - kSimpler);
    });
  }

  void search_offloading(JobSpec spec, const OffloadSpec& offload) {
    spec.parallel.offload = offload;
    if (most_shared_) spec = with_sizes(std::move(spec), *most_shared_);
    try {
      search(spec, "; " + to_string(offload));
    } catch (const NoLegalPlan&) {  // this offloading is not legal with the fields that the job fixes
    }
  }

  /// Searches with the sizes that the job gives, and then, where it may help, with ranks that share sequences: where
  /// samples are too few for all ranks, or where each rank has one sample and memory is short. Ranks with more samples
  /// save memory by micro-batches, which send less.
  void search_sizes(const JobSpec& spec) {
    const bool is_short = search(spec, "");
    const int64_t samples = spec.dataset.batch, ranks = spec.launch.ranks;
    if (!may_share_rows(spec) || !(samples < ranks || (is_short && samples < 2 * ranks) || !best_)) return;
    const std::optional<double> before = best_ ? std::optional(best_->seconds()) : std::nullopt;
    bool is_chosen = false;
    for (const SharedRows& sizes : sizes_to_search(job_, spec)) {
      try {
        const double seconds = best_ ? best_->seconds() : 0;
        const bool is_short_too = search(with_sizes(spec, sizes), "");
        if (samples < ranks) most_shared_ = sizes;
        is_chosen = is_chosen || (best_ && best_->seconds() != seconds);
        if (best_ && !is_short_too) break;  // more ranks per sequence would only send more
      } catch (const NoLegalPlan&) {        // these sizes are not legal with the fields that the job fixes
      }
    }
    if (!is_chosen) return;
    const ParallelSpec& parallel = best_->spec.parallel;
    const std::string other = before ? takes(*before) : "does not fit into memory";
    best_->found.notes.push_back(fmt::format("tensor {} x context {}: the best plan without parallel.context {}",
                                             parallel.tensor, parallel.context, other));
  }

  /// Keeps the result if it is the best. Returns true if plans that do not fit would be faster; then it also searches
  /// with fewer choices, unless the job offloads, which is slow anyway. If no plan fits, other sizes and offloading
  /// find one sooner.
  bool search(const JobSpec& spec, const std::string& differs) {
    Trials trials(job_);
    std::optional<FoundPlan> found = find(spec, trials, differs);
    if (!found) return true;
    const bool is_short = keep_too_large(spec, *found);
    double least = found->best().trial.seconds;
    if (is_short && differs.empty() && may_be_best(*found)) {
      for (const JobSpec& narrower : with_fewer_choices(spec)) {
        if (!may_be_faster(narrower, *found, least)) continue;
        try {
          add(find(narrower, trials, differs), *found, least);
        } catch (const NoLegalPlan&) {  // the search with all choices has another plan
        }
      }
    }
    least_ = std::min(least_, least);
    if (best_ && best_->seconds() <= least_ * (1 + kSimpler)) return is_short;
    best_ = Searched{std::move(*found), {}, {}};
    best_->spec = with_choice(spec, best_->found.best().choice);
    best_->known = trials.take(best_->spec);
    return is_short;
  }

  /// Runs one search. Returns nullopt if no plan fits.
  std::optional<FoundPlan> find(const JobSpec& spec, Trials& trials, const std::string& differs) {
    try {
      FoundPlan found = find_(spec, job_.data.shapes, job_.cost, memory_,
                              [&trials](JobSpec each, TriedRanks ranks) { return trials.run(std::move(each), ranks); });
      exchange_tokens(spec, trials, found);
      return found;
    } catch (const NoPlanFits& error) {
      if (smallest_ && smallest_->needed() <= error.needed()) return std::nullopt;
      smallest_ = error;
      smallest_plan_ = error.plan() + differs;
      return std::nullopt;
    }
  }

  /// Adds the plans that would be faster than the best one but do not fit. Returns true if there are any.
  bool keep_too_large(const JobSpec& spec, const FoundPlan& found) {
    const size_t before = too_large_.size();
    std::shared_ptr<const JobSpec> shared;
    for (const TriedPlan& plan : found.tried) {
      if (!plan.trial.fault.empty() || plan.trial.fits(memory_) || plan.trial.seconds >= found.best().trial.seconds)
        continue;
      if (!shared) shared = std::make_shared<JobSpec>(spec);
      too_large_.push_back({shared, plan.choice, plan.trial.seconds, plan.trial.memory});
    }
    return too_large_.size() > before;
  }

  /// If ranks share experts in the best plan, tries the same plan with an exchange of tokens.
  void exchange_tokens(const JobSpec& spec, Trials& trials, FoundPlan& found) const {
    const TriedPlan& best = found.best();
    const Graph* const graph = trials.graph_of(with_choice(spec, best.choice));
    if (graph == nullptr) return;
    const std::optional<PlanChoice> choice = exchanging_choice(*graph, best.choice);
    if (!choice) return;
    TriedPlan tried{best.name + "; tokens exchanged", *choice, 0,
                    trials.run(with_choice(spec, *choice), TriedRanks::all)};
    if (!tried.trial.fits(memory_) || tried.trial.seconds >= best.trial.seconds) return;
    found.tried.insert(found.tried.begin(), std::move(tried));
  }

  /// True if a search with fewer choices than the one that found this may find the best plan.
  bool may_be_best(const FoundPlan& found) const {
    return !best_ || found.best().trial.seconds <= kMayBeBest * best_->seconds();
  }

  /// True if a tried plan that belongs to the search with fewer choices would be the fastest if it had to save no
  /// memory.
  static bool may_be_faster(const JobSpec& narrower, const FoundPlan& found, double least) {
    return std::any_of(found.tried.begin(), found.tried.end(), [&](const TriedPlan& plan) {
      return plan.trial.fault.empty() && plan.trial.seconds < least * (1 - kSimpler) &&
             belongs_to(plan.choice, narrower);
    });
  }

  /// Adds the result of a search with fewer choices. `least`: seconds of the fastest of all results.
  static void add(std::optional<FoundPlan> other, FoundPlan& found, double& least) {
    if (!other) return;
    least = std::min(least, other->best().trial.seconds);
    if (found.best().trial.seconds > least * (1 + kSimpler)) std::swap(*other, found);
    add_plans(std::move(*other), found);
  }

  const PlannedJob& job_;
  const int64_t memory_;
  const FindPlan& find_;
  std::optional<Searched> best_;
  double least_ = kNoTime;  ///< seconds of the fastest plan of all searches, which may be less simple than best_
  std::optional<NoPlanFits> smallest_;
  std::string smallest_plan_;
  std::vector<TooLarge> too_large_;
  std::optional<SharedRows> most_shared_;  ///< set if there are fewer samples than ranks: sizes with the least memory
};

}  // namespace

Trials::KnownGraph search_plan(PlannedJob& job, const FindPlan& find) {
  ParallelSpec& parallel = job.spec.parallel;
  if (parallel.mode != ParallelMode::auto_parallel) return {};
  parallel.mode = ParallelMode::semi_auto_parallel;
  // Memory does not affect which cuts are chosen here; whether they fit is reported once everything is planned.
  const int64_t memory = parallel.search.algorithm == SearchAlgorithm::sharding_propagation ? 0 : memory_limit(job);
  Searched best = PlanSearch(job, memory, find).run(job.spec);
  job.search = std::move(best.found);
  job.spec = std::move(best.spec);
  return std::move(best.known);
}

}  // namespace trainctl
