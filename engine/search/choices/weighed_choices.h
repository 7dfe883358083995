// All combinations of the choices that a job leaves open, with estimates of their time and memory: for each number of
// stages and of micro-batches the best cuts, then schedules, levels of optimizer_shard and ways to recompute.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "engine/search/choices/open_choices.h"
#include "engine/search/choices/plan_choice.h"
#include "engine/search/cuts/cut_choices.h"
#include "engine/search/cuts/step_sum.h"
#include "engine/search/networks.h"

namespace trainctl {

/// A combination of choices, with its estimate.
struct Considered {
  int stages = 1, chunks = 1, micro_batches = 1;
  ShardChoice shard;
  int64_t bucket_bytes = 0;
  Schedule schedule = Schedule::one_f_one_b;
  size_t recompute = 0;  ///< index into OpenChoices::recompute_ways
  std::shared_ptr<const CutChoice> cuts;
  Expected expected;
  bool saves_in_vain =
      false;  ///< it recomputes or shards more than another one that certainly fits and takes no longer
  std::shared_ptr<const Recompute> some = {};  ///< not null: it recomputes this in some of the blocks
};

/// True if both recompute the same.
inline bool recomputes_alike(const Considered& a, const Considered& b) {
  return a.recompute == b.recompute && a.some == b.some;
}

/// Returns the number of choices in which the two differ.
int differences(const Considered& a, const Considered& b);

/// The arguments of the constructor must outlive the object, which refers to them.
class WeighedChoices {
 public:
  /// `large`: blocks are left out where plans are tried. `memory`: bytes per rank; 0: no limit.
  WeighedChoices(const JobSpec& job, Networks& networks, const OpenChoices& open, const CostModel& cost, int64_t memory,
                 bool large);

  /// True for a large network whose kernels take longer than starting them. For short kernels the sum of all starts
  /// says little, since many are fused.
  bool has_long_kernels();
  /// Adds choices. `seconds_per_byte`: the price of memory when cuts are chosen.
  void weigh(double seconds_per_byte);
  /// Adds cuts that need less memory: memory gets a price, which rises until a choice is expected to fit, or if
  /// `to_the_end` as far as it changes the cuts.
  void weigh_short_of_memory(bool to_the_end);
  /// Adds many cuts: some that take little time, and some that need little memory.
  void weigh_many_cuts();
  /// Adds choices of one stage with more micro-batches. They only save memory, so weigh() leaves them out.
  void weigh_more_micro_batches();

  const std::vector<Considered>& all() const { return all_; }
  bool fits(const Considered& one, double scale = 1) const;
  bool any_fits() const;
  /// The expected memory of a choice, also with other cuts than those that were weighed.
  double memory_of(const Considered& one) const;
  /// Sorts choices that may fit first, by their time; then the rest, by their memory. `memory_scale`: ratio of the
  /// memory that a plan takes to the expected one, from the trials so far.
  void sort(double memory_scale);
  void sort_by_memory();
  /// Returns the best choice for each number of stages and way to cut, then the second best of each, and so on, so that
  /// different plans compete before similar ones. Each choice has the number of its turn, from 0.
  std::vector<std::pair<int, const Considered*>> in_turns() const;

  std::vector<LayerLoad> loads(const CutChoice& cuts) const;
  const WeightBytes& bytes() const { return bytes_; }
  double bound() const { return bound_; }       ///< seconds: no plan of the weighed choices takes less
  int64_t weighed() const { return weighed_; }  ///< choices
  bool exact() const { return exact_; }         ///< the cuts are the best ones of their search space
  const std::vector<Diagnostic>& illegal() const { return illegal_; }

 private:
  /// Numbers of stages and micro-batches, with a lower bound for the estimated times of their plans.
  struct Pipeline {
    int stages = 1, micro_batches = 1;
    double least = 0;
  };
  std::vector<Pipeline> pipelines();
  double weigh(const Pipeline& pipeline, const std::vector<std::shared_ptr<const CutChoice>>& ways_to_cut);
  /// Sets saves_in_vain among the choices from this index on, which have the same cuts.
  void mark_savers_in_vain(size_t from);
  double least_memory() const;
  std::vector<bool> recomputed(const Recompute& rules, const SearchNetwork& network,
                               const std::vector<LayerLoad>& loads) const;

  const JobSpec& job_;
  Networks& networks_;
  const OpenChoices& open_;
  const CostModel& cost_;
  const int64_t memory_;
  const bool large_;
  const int ranks_of_host_;
  const WeightBytes bytes_;
  CutChoices cut_choices_;
  std::vector<Considered> all_;
  std::vector<std::vector<bool>> recomputed_;  ///< by way to recompute, and layer; empty: not known yet
  bool saves_memory_ = false;
  double bound_ = 0;
  int64_t weighed_ = 0;
  bool exact_ = true;
  std::vector<Diagnostic> illegal_;
};

/// A plan whose expected memory exceeds the limit is tried nevertheless, unless it does so by more than this factor.
inline constexpr double kMemoryDoubt = 1.3;

}  // namespace trainctl
