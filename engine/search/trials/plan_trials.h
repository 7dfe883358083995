// The plans that a search has tried and may still try: every phase of the search (find_plan.cpp,
// recompute_in_some_blocks.cpp, single_changes.cpp) tries plans through one PlanTrials.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "engine/search/choices/open_choices.h"
#include "engine/search/choices/weighed_choices.h"
#include "engine/search/find_plan.h"
#include "engine/search/networks.h"
#include "engine/search/trials/small_jobs.h"
#include "engine/search/trials/tried_plans.h"

namespace trainctl {

inline constexpr double kNoTime = std::numeric_limits<double>::infinity();

/// A plan that is expected to take this many times as long as the best is not tried.
struct Doubts {
  double first = 1.5;      ///< the best plan of its cuts in one stage
  double other = 1.5;      ///< any other plan
  double lengthy = 1.2;    ///< a plan that takes long to try
  double cuts = 1.5;       ///< the best plan with other cuts of one layer
  double least_share = 0;  ///< share of the step; a layer that takes less gets no other cuts
  bool any_saver = true;   ///< true: plans that save memory are tried even if there is enough
};

/// Limits of the search. Work is layers times micro-batches, which is roughly proportional to the time of compiling and
/// simulating a plan.
struct TrialLimits {
  int64_t most_work;
  int64_t little_work;  ///< always tried, so that many plans of small networks are
  int64_t long_work;    ///< work of one plan; see Doubts::lengthy
  size_t trials;        ///< no more trials once little_work is done
  size_t first;         ///< trials before changes of the best
};

struct PlanTrials {
  /// The arguments must outlive the object.
  PlanTrials(const JobSpec& job, const DataShapes& data, const CostModel& cost, const PlanLimits& plan_limits,
             const TryPlan& try_plan);

  /// Tries a choice within the limits, or despite them if `always`, unless a plan is known that is certainly faster
  /// (PlanLimits::seconds). `first`: it is the best of its cuts in one stage.
  /// Returns null if it was tried before, if it is expected to be too slow, or if enough has been tried.
  const TriedPlan* try_one(const Considered& one, bool always, bool first = false);
  /// Tries a choice with all blocks and despite all limits. Returns null if it was tried before.
  const TriedPlan* try_all_blocks(const Considered& one);
  /// Tries a plan on the whole network.
  Trial try_whole(const PlanChoice& choice) const;
  /// Adds a trial of the choice.
  const TriedPlan& add(const Considered& one, PlanChoice choice, Trial trial);

  /// The plan of a choice without its cuts, and the cuts.
  PlanChoice header_of(const Considered& one) const;
  void add_cuts(const Considered& one, PlanChoice& choice) const;

  /// True if `most` plans, or too much work, have been tried to try one more that takes this work. When memory is
  /// short, more is tried, because there are more ways to save memory than time.
  bool is_enough(int64_t work, size_t most) const;
  /// True if the choice is expected to take `doubt` times as long as the best plan. Its estimate is corrected by the
  /// smallest ratio of simulated to estimated time of its kind; for a new kind, by that of similar ones.
  bool is_too_slow(const Considered& one, int64_t work, double doubt) const;
  /// Judges a choice by tried plans with the same sharding and recomputation. Returns true if, by the most favorable of
  /// them, the choice does not fit and takes longer than another one that does not fit either.
  bool is_too_large(const Considered& one) const;
  /// Seconds of the best plan that fits, of this search or an earlier one; kNoTime: there is none.
  double best_seconds() const;
  /// True if plans fit, but the plan of an earlier search is faster than all of them.
  bool is_beaten() const;
  /// True for a small job that is short of memory: many cuts are tried, not only the best of each way to split the
  /// mesh.
  bool searches_widely() const;
  bool is_free_to_cut() const { return job.parallel.search.algorithm != SearchAlgorithm::sharding_propagation; }
  /// One stage without recompute, and as few micro-batches as the job allows.
  bool is_plain(const Considered& one) const;
  /// Returns the median ratio of the memory that a tried plan takes to the expected one.
  double memory_scale() const;

  const JobSpec& job;
  const JobSpec bare;  ///< the job without positions, because it is copied often
  const CostModel& cost;
  const int64_t memory;        ///< PlanLimits::memory
  const double known_seconds;  ///< PlanLimits::seconds
  const TryPlan& try_plan;
  const Effort effort;
  std::vector<std::string> notes;
  Networks networks;
  SmallJobs small;
  const TrialLimits limits;
  const OpenChoices open;
  WeighedChoices weighed;
  const Doubts doubts;
  TriedPlans tried;
  std::vector<Considered> sources;  ///< choice that each plan of `tried` was made from
  int64_t work_done = 0;

 private:
  /// Plans of one kind have similar errors of the estimate. The kind is: whether optimizer_shard.level is 3, whether
  /// there are several stages, and the schedule.
  using Kind = std::tuple<bool, bool, Schedule>;
  /// Least ratio of simulated to expected seconds of plans of this kind, or of similar ones; kNoTime: none was tried.
  double least_ratio(const Considered& one) const;
  static Kind kind_of(const Considered& one) { return {one.shard.level == 3, one.stages > 1, one.schedule}; }

  /// The estimated memory is off by a similar factor for plans that have all of these in common: optimizer_shard.level,
  /// whether there are several stages, and the list of recomputed layers.
  using SavingKind = std::tuple<int, bool, size_t>;
  static SavingKind saving_kind_of(const Considered& one) { return {one.shard.level, one.stages > 1, one.recompute}; }
  struct MemoryRatio {
    int plans = 0;
    double least = kNoTime;  ///< least ratio of the memory of a plan to the expected one
  };

  std::map<Kind, double> least_ratio_;  ///< least ratio of simulated to expected seconds
  std::map<SavingKind, MemoryRatio> memory_ratios_;
};

}  // namespace trainctl
