// Tries every plan that a job can express, in full (search.algorithm: exhaustive).
#include "engine/search/trials/exhaustive.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "engine/base/text.h"
#include "engine/search/choices/open_choices.h"
#include "engine/search/no_plan_fits.h"
#include "engine/search/trials/tried_plans.h"

namespace trainctl {
namespace {

class EveryPlan {
 public:
  EveryPlan(const JobSpec& job, const DataShapes& data, const CostModel& cost, int64_t memory, const TryPlan& try_plan)
      : job_(job),
        try_plan_(try_plan),
        networks_(job, data, cost),
        open_(job, networks_, cost.machine(), found_.notes),
        tried_(job, memory, try_plan) {
    found_.memory = memory;
  }

  FoundPlan run() {
    double plans = 0;
    for (const Space& space : spaces()) {
      double here = 1;
      for (const PatternCuts& of_pattern : space.cuts) here *= static_cast<double>(of_pattern.cuts.size());
      plans += here * static_cast<double>(space.choices.size());
    }
    if (plans > static_cast<double>(kMostExhaustive))
      throw SpecError(
          job_.position("parallel.search.algorithm"), "parallel.search.algorithm",
          fmt::format("exhaustive would try {:.3g} plans; the limit is {}", plans, with_commas(kMostExhaustive)),
          "fix more fields of parallel (stages, micro_batches, optimizer_shard, strategies), or use "
          "recursive_programming");
    for (const Space& space : spaces())
      for (const PlanChoice& choice : space.choices) try_all(space, choice, 0);
    if (tried_.size() == 0 && !illegal_.empty()) throw NoLegalPlan(illegal_);
    std::vector<size_t> order;
    found_.tried = tried_.take(order);
    found_.weighed = static_cast<int64_t>(order.size());
    return std::move(found_);
  }

 private:
  /// The choices for one number of stages and of micro-batches: all cuts, and all combinations of the other choices.
  struct Space {
    std::vector<PatternCuts> cuts;
    std::vector<PlanChoice> choices;
  };

  /// All legal choices, grouped by stages and micro-batches, with every cut for each; sets found_.bound to a lower
  /// bound of the step.
  std::vector<Space> spaces() {
    std::vector<Space> all;
    found_.bound = std::numeric_limits<double>::infinity();
    for (int stages : open_.stage_counts())
      for (int m : open_.micro_batch_counts()) {
        const Mesh mesh(job_.launch.ranks / stages);
        const std::shared_ptr<const SearchNetwork> network = networks_.of(m);
        std::vector<Diagnostic> errors;
        const auto strategies = network->strategies(mesh, stages, errors);
        if (!errors.empty()) {
          illegal_ = std::move(errors);
          continue;
        }
        Space& space = all.emplace_back(Space{every_cut(*network->cuts, mesh, strategies), {}});
        for (const auto& [schedule, chunks] : open_.schedules(stages, m)) {
          found_.bound = std::min(found_.bound, least_seconds(network->least, job_.launch.ranks, stages, m, schedule));
          for (const ShardChoice& shard : open_.shards(mesh))
            for (const Recompute& recompute : open_.recompute_ways())
              space.choices.push_back({.stages = stages,
                                       .chunks = chunks,
                                       .schedule = schedule,
                                       .micro_batches = m,
                                       .optimizer_shard = shard,
                                       .bucket_bytes = job_.parallel.bucket_bytes,
                                       .stage_config = job_.parallel.stage_config,
                                       .strategies = job_.parallel.strategies,
                                       .recompute = recompute});
        }
      }
    return all;
  }

  /// Adds each cut of pattern number `next` and of all later patterns to `choice`, and tries all resulting plans.
  void try_all(const Space& space, PlanChoice choice, size_t next) {
    if (next < space.cuts.size()) {
      const PatternCuts& of_pattern = space.cuts[next];
      for (const std::vector<Ints>& cuts : of_pattern.cuts) {
        PlanChoice with = choice;
        with.strategies.insert(with.strategies.begin(), {of_pattern.pattern, cuts, "", ""});
        try_all(space, std::move(with), next + 1);
      }
      return;
    }
    std::vector<std::string> words;
    for (const StrategySpec& strategy : choice.strategies) {
      std::vector<std::string> cuts;
      for (const Ints& of_input : strategy.cuts) cuts.push_back(format_list(of_input));
      words.push_back(fmt::format("{} [{}]", strategy.pattern, join(cuts)));
    }
    Trial trial = try_plan_(with_choice(job_, choice), TriedRanks::all);
    tried_.add({fmt::format("{}; {}", to_string(choice), join(words)), std::move(choice), 0, std::move(trial)});
  }

  const JobSpec& job_;
  const TryPlan& try_plan_;
  FoundPlan found_;
  Networks networks_;
  const OpenChoices open_;
  TriedPlans tried_;
  std::vector<Diagnostic> illegal_;
};

}  // namespace

FoundPlan find_exhaustively(const JobSpec& job, const DataShapes& data, const CostModel& cost, int64_t memory,
                            const TryPlan& try_plan) {
  return EveryPlan(job, data, cost, memory, try_plan).run();
}

}  // namespace trainctl
