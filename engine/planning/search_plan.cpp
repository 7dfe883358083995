// Searches for the fastest plan of a job (parallel.mode: auto_parallel). find_plan searches with a given number of
// ranks per sequence and given offloading; this file tries several of both, and searches again with fewer choices where
// memory is short.
#include "engine/planning/search_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
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
/// Offloading is tried for kMostOffloaded plans that do not fit, of the searches with each of several sizes. Each must
/// take less than kMuchFaster times the time of the best plan that fits (with sizes in which no plan fits, it need only
/// be faster), and each next one needs kMuchSmaller times the memory of the previous one. Then there are at most
/// kMostOffloadSearches searches for the best of these.
constexpr size_t kMostOffloaded = 3, kMostOffloadSearches = 2;
constexpr double kMuchFaster = 0.97, kMuchSmaller = 1.05;
/// Searches with fewer choices found plans that take up to 4 % less time. They are left out if the search with all
/// choices found a plan that takes this many times as long as the best one.
constexpr double kMayBeBest = 1.05;

constexpr double kNoTime = std::numeric_limits<double>::infinity();

/// Tensor and context.
using Sizes = std::pair<int, int>;
Sizes sizes_of(const JobSpec& spec) { return {spec.parallel.tensor, spec.parallel.context}; }

/// The result of one search.
struct Searched {
  FoundPlan found;
  JobSpec spec;  ///< with the best plan
  Trials::KnownGraph known;
  double without_exchange = 0;  ///< seconds of the best plan before tokens are exchanged (exchange_tokens)

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
      search_faster_offloading(ways);
    else
      search_fitting_offloading(given, ways);
    if (!best_) throw NoPlanFits(given, memory_, smallest_->needed(), smallest_plan_);
    return std::move(*best_);
  }

 private:
  /// A plan that would be fast but does not fit.
  struct TooLarge {
    PlanChoice choice;
    double seconds = 0;
    int64_t memory = 0;
  };
  /// The searches with the same sizes of tensor and context.
  struct OfSizes {
    JobSpec spec;
    std::vector<TooLarge> too_large;
    double seconds = kNoTime;  ///< time of the fastest plan that fits
  };
  /// A kind of offloading for the searches with some sizes.
  struct Offloading {
    const OfSizes* searches = nullptr;
    OffloadSpec offload;
    Trial trial;  ///< the best one of the plans that do not fit without it
  };

  /// Called if no plan fits without offloading. Searches with all parts on the host, which needs the least device
  /// memory, and then with each part alone.
  void search_fitting_offloading(const JobSpec& given, const std::vector<OffloadSpec>& ways) {
    if (ways.empty()) return;
    JobSpec spec = given;
    std::vector<Offloading> all = offloadings({ways.back()});
    if (all.size() > kMostOffloadSearches) all.resize(kMostOffloadSearches);
    for (const Offloading& one : all) {
      if (best_ || (&one != all.data() && !one.trial.fits(memory_))) break;
      spec = one.searches->spec;
      search_offloading(spec, ways.back());
    }
    if (all.empty()) search_offloading(spec, ways.back());
    if (!best_ || ways.size() == 1) return;
    Searched both = std::move(*best_);
    best_.reset();
    least_ = kNoTime;
    for (size_t w = 0; w + 1 < ways.size(); ++w) search_offloading(spec, ways[w]);
    if (!best_ || both.seconds() < best_->seconds() * (1 - kSimpler)) best_ = std::move(both);
  }

  /// Searches with the offloadings and sizes that make a plan fit which is then faster than the best plan.
  void search_faster_offloading(const std::vector<OffloadSpec>& ways) {
    const double without = best_->seconds();
    size_t searched = 0;
    for (const Offloading& one : offloadings(ways)) {
      const bool is_faster = one.trial.fits(memory_) && one.trial.seconds < best_->seconds() * (1 - kSimpler);
      if (!is_faster || searched++ == kMostOffloadSearches) break;
      search_offloading(one.searches->spec, one.offload);
    }
    if (best_->seconds() >= without) return;
    best_->found.notes.push_back(
        fmt::format("{}: the best plan without it {}", to_string(best_->spec.parallel.offload), takes(without)));
  }

  /// Tries plans that do not fit with each of these kinds of offloading. Returns the kinds for all sizes that were
  /// searched, those first whose best plan is the fastest that fits, then those whose best plan needs the least memory.
  std::vector<Offloading> offloadings(const std::vector<OffloadSpec>& ways) {
    std::vector<Offloading> all;
    const auto place = [&](const Trial& trial) {
      if (trial.fits(memory_)) return std::pair{0, trial.seconds};
      return trial.fault.empty() ? std::pair{1, static_cast<double>(trial.memory)} : std::pair{2, 0.0};
    };
    for (auto& [sizes, searches] : searches_) {
      Trials trials(job_);
      const std::vector<PlanChoice> choices = choices_to_offload(searches);
      for (const OffloadSpec& offload : ways) {
        std::optional<Trial> best;
        for (const PlanChoice& choice : choices) {
          JobSpec spec = with_choice(searches.spec, choice);
          spec.parallel.offload = offload;
          Trial trial = trials.run(std::move(spec), TriedRanks::one_per_stage);
          if (!best || place(trial) < place(*best)) best = std::move(trial);
        }
        if (best) all.push_back({&searches, offload, std::move(*best)});
      }
    }
    std::stable_sort(all.begin(), all.end(),
                     [&](const Offloading& a, const Offloading& b) { return place(a.trial) < place(b.trial); });
    return all;
  }

  /// Returns up to kMostOffloaded plans that do not fit but would be faster than the best one, the smallest first.
  std::vector<PlanChoice> choices_to_offload(OfSizes& searches) const {
    std::stable_sort(searches.too_large.begin(), searches.too_large.end(),
                     [](const TooLarge& a, const TooLarge& b) { return a.memory < b.memory; });
    const bool has_plan = searches.seconds < kNoTime;
    const double most_seconds = best_ ? (has_plan ? kMuchFaster : 1 - kSimpler) * best_->seconds() : kNoTime;
    double last = has_plan ? static_cast<double>(memory_) : 0;
    std::vector<PlanChoice> choices;
    for (const TooLarge& plan : searches.too_large) {
      const auto memory = static_cast<double>(plan.memory);
      if (plan.seconds >= most_seconds || memory < kMuchSmaller * last) continue;
      last = memory;
      choices.push_back(plan.choice);
      if (choices.size() == kMostOffloaded) break;
    }
    return choices;
  }

  void search_offloading(JobSpec spec, const OffloadSpec& offload) {
    spec.parallel.offload = offload;
    try {
      search(spec, "; " + to_string(offload));
    } catch (const NoLegalPlan&) {  // this offloading is not legal with the fields that the job fixes
    }
  }

  /// Searches with the sizes that the job gives and, where it may help, with ranks that share sequences: first where
  /// samples are too few for all ranks, and afterwards where each rank has one sample and memory is short. Ranks with
  /// more samples save memory by micro-batches, which send less.
  void search_sizes(const JobSpec& spec) {
    const int64_t samples = spec.dataset.batch, ranks = spec.launch.ranks;
    const bool may_share = may_share_rows(spec), are_few = may_share && samples < ranks;
    if (are_few) search_shared(spec);
    bool is_short = true;
    try {
      is_short = search(spec, "");
    } catch (const NoLegalPlan&) {
      if (!best_) throw;
    }
    if (may_share && !are_few && ((is_short && samples < 2 * ranks) || !best_)) search_shared(spec);
    if (!best_ || sizes_of(best_->spec) == sizes_of(spec)) return;
    const double without = searches_[sizes_of(spec)].seconds;
    const ParallelSpec& parallel = best_->spec.parallel;
    best_->found.notes.push_back(fmt::format("tensor {} x context {}: the best plan without parallel.context {}",
                                             parallel.tensor, parallel.context,
                                             without < kNoTime ? takes(without) : "does not fit into memory"));
  }

  /// Searches with ranks that share sequences: as few as possible first.
  void search_shared(const JobSpec& spec) {
    for (const std::vector<SharedRows>& alike : sizes_to_search(job_, spec)) {
      const bool is_short = search_alike(spec, alike);
      if (best_ && !is_short) return;  // more ranks per sequence would only send more
    }
  }

  /// Searches with the first of these sizes, which are the fastest. As long as memory is short, searches also with the
  /// sizes whose smallest plan fits and needs less memory than that of all sizes before; those whose smallest plan does
  /// not fit may still be offloaded. Returns whether memory is short with all of these sizes.
  bool search_alike(const JobSpec& spec, const std::vector<SharedRows>& alike) {
    std::optional<int64_t> least;
    bool is_short = true;
    for (const SharedRows& sizes : alike) {
      const JobSpec sized = with_sizes(spec, sizes);
      if (&sizes != &alike.front()) {
        if (!least) least = smallest_plan(job_, with_sizes(spec, alike.front())).trial.memory;
        const TriedPlan smallest = smallest_plan(job_, sized);
        if (!smallest.trial.fault.empty() || smallest.trial.memory >= *least) continue;
        least = smallest.trial.memory;
        if (!smallest.trial.fits(memory_)) {
          keep_too_large(sized, {smallest}, kNoTime);
          continue;
        }
      }
      try {
        is_short = search(sized, "");
      } catch (const NoLegalPlan&) {  // these sizes are not legal with the fields that the job fixes
      }
      if (!is_short) return false;
    }
    return is_short;
  }

  /// Keeps the result if it is the best. Returns true if plans that do not fit would be faster; then it also searches
  /// with fewer choices, unless the job offloads, which is slow anyway. If no plan fits, other sizes and offloading
  /// find one sooner.
  bool search(const JobSpec& spec, const std::string& differs) {
    Trials trials(job_);
    double known = differs.empty() || !best_ ? kNoTime : best_->without_exchange;
    std::optional<FoundPlan> found = find(spec, trials, differs, known);
    if (!found) return true;
    const bool is_short = differs.empty() && keep_too_large(spec, found->tried, found->best().trial.seconds);
    double least = found->best().trial.seconds;
    if (is_short && may_be_best(*found)) {
      for (const JobSpec& narrower : with_fewer_choices(spec)) {
        if (!may_be_faster(narrower, *found, least)) continue;
        try {
          add(find(narrower, trials, differs, known), *found, least);
        } catch (const NoLegalPlan&) {  // the search with all choices has another plan
        }
      }
    }
    if (differs.empty()) searches_[sizes_of(spec)].seconds = least;
    least_ = std::min(least_, least);
    if (best_ && best_->seconds() <= least_ * (1 + kSimpler)) return is_short;
    best_ = Searched{std::move(*found), {}, {}, known};
    best_->spec = with_choice(spec, best_->found.best().choice);
    best_->known = trials.take(best_->spec);
    return is_short;
  }

  /// Runs one search for plans that take less than `known` seconds before tokens are exchanged, and sets `known` to the
  /// seconds of the best one. Returns nullopt if no plan fits.
  std::optional<FoundPlan> find(const JobSpec& spec, Trials& trials, const std::string& differs, double& known) {
    try {
      FoundPlan found = find_(spec, job_.data.shapes, job_.cost, {memory_, known},
                              [&trials](JobSpec each, TriedRanks ranks) { return trials.run(std::move(each), ranks); });
      known = std::min(known, found.best().trial.seconds);
      exchange_tokens(spec, trials, found);
      return found;
    } catch (const NoPlanFits& error) {
      if (differs.empty()) keep_too_large(spec, error.tried(), kNoTime);
      if (smallest_ && smallest_->needed() <= error.needed()) return std::nullopt;
      smallest_ = error;
      smallest_plan_ = error.plan() + differs;
      return std::nullopt;
    }
  }

  /// Keeps the plans that take less than `fastest` seconds but do not fit. Returns true if there are any.
  bool keep_too_large(const JobSpec& spec, const std::vector<TriedPlan>& tried, double fastest) {
    const auto [known, is_new] = searches_.try_emplace(sizes_of(spec));
    OfSizes& searches = known->second;
    if (is_new) searches.spec = spec;
    searches.seconds = std::min(searches.seconds, fastest);
    const size_t before = searches.too_large.size();
    for (const TriedPlan& plan : tried)
      if (plan.trial.fault.empty() && !plan.trial.fits(memory_) && plan.trial.seconds < fastest)
        searches.too_large.push_back({plan.choice, plan.trial.seconds, plan.trial.memory});
    return searches.too_large.size() > before;
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
  std::map<Sizes, OfSizes> searches_;  ///< without offloading
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
