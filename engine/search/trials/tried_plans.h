// The plans that a search has tried: the best one, or the error if none fits.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engine/search/find_plan.h"

namespace trainctl {

/// Differs for choices that differ.
std::string key_of(const PlanChoice& choice);

class TriedPlans {
 public:
  /// `memory`: bytes per rank; 0: no limit.
  TriedPlans(const JobSpec& job, int64_t memory, const TryPlan& try_plan)
      : job_(job), memory_(memory), try_plan_(try_plan) {}

  bool is_known(const PlanChoice& choice) const { return keys_.contains(key_of(choice)); }
  /// Adds a new plan and returns its index.
  size_t add(TriedPlan plan);
  /// Replaces the trial of a plan by a more accurate one.
  void replace(size_t plan, Trial trial);
  const TriedPlan& operator[](size_t i) const { return plans_[i]; }
  size_t size() const { return plans_.size(); }

  /// The index of the fastest plan that fits.
  std::optional<size_t> fastest() const { return fastest_; }
  /// The index of the plan that needs the least memory, whether it fits or not.
  std::optional<size_t> smallest() const { return smallest_; }
  /// The index of the fastest plan that does not fit.
  std::optional<size_t> fastest_too_large() const { return fastest_too_large_; }
  /// True if a plan that does not fit would be the fastest.
  bool is_short_of_memory() const;
  /// Tries the best plan in full, and repeats this until the best one has been tried in full. Returns its index. Among
  /// plans whose times differ by less than the error of the model, the simplest is best. Throws SpecError if none fits.
  size_t settle();
  /// Returns the plans, the best first, which has been tried in full; sets `order` to the indices at which they were
  /// added.
  std::vector<TriedPlan> take(std::vector<size_t>& order);
  /// The same, but none has been tried in full for this.
  std::vector<TriedPlan> take_unsettled(std::vector<size_t>& order);

 private:
  /// Compares the plan with the best of those before it.
  void compare(size_t plan);
  void compare_all();
  std::vector<size_t> sorted() const;
  /// Corrects the estimates of similar plans by the error that this trial shows.
  void try_in_full(size_t plan);
  [[noreturn]] void throw_none_fits() const;

  const JobSpec& job_;
  const int64_t memory_;
  const TryPlan& try_plan_;
  std::vector<TriedPlan> plans_;
  std::set<std::string> keys_;
  std::optional<size_t> fastest_, smallest_;
  std::optional<size_t> fastest_too_large_;  ///< fastest of the plans that do not fit
  std::optional<size_t> compiled_;           ///< the last that was tried in full, which keeps its programs
};

}  // namespace trainctl
