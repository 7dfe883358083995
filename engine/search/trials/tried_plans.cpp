// Keeps the plans that a search has tried, orders them, and tries the best ones in full.
#include "engine/search/trials/tried_plans.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>
#include <utility>

#include "engine/base/text.h"
#include "engine/search/no_plan_fits.h"

namespace trainctl {
namespace {

/// A more complex plan is preferred to a simpler one only if it is faster by more than this fraction.
constexpr double kSimpler = 0.005;
/// Relative error that the sum over jobs of fewer blocks may have. Plans with the same number of stages share it.
constexpr double kOffAlike = 0.04;

/// Returns a measure of complexity: the number of decisions that a reader of the plan has to understand.
int complexity(const PlanChoice& choice) {
  constexpr size_t kManyDistinctCuts = 6;
  std::set<std::vector<Ints>> distinct;
  for (const StrategySpec& strategy : choice.strategies) distinct.insert(strategy.cuts);
  return (choice.stages > 1) + (choice.chunks > 1) + (choice.micro_batches > 1) + choice.optimizer_shard.level +
         choice.optimizer_shard.within_host + (choice.bucket_bytes > 0) + !choice.recompute.empty() +
         (choice.schedule == Schedule::zero_bubble) + (distinct.size() > kManyDistinctCuts);
}

}  // namespace

std::string key_of(const PlanChoice& choice) {
  std::string key = to_string(choice);
  for (const StrategySpec& strategy : choice.strategies) {
    key += strategy.pattern;
    for (const Ints& cuts : strategy.cuts) key += format_list(cuts);
  }
  return key;
}

size_t TriedPlans::add(TriedPlan plan) {
  keys_.insert(key_of(plan.choice));
  plan.trial.compiled = nullptr;  // programs are large, and there are many plans
  plans_.push_back(std::move(plan));
  compare(plans_.size() - 1);
  return plans_.size() - 1;
}

void TriedPlans::replace(size_t plan, Trial trial) {
  trial.compiled = nullptr;
  plans_[plan].trial = std::move(trial);
  compare_all();
}

void TriedPlans::compare(size_t plan) {
  const Trial& trial = plans_[plan].trial;
  if (!trial.fault.empty()) return;
  std::optional<size_t>& fastest = trial.fits(memory_) ? fastest_ : fastest_too_large_;
  if (!fastest || trial.seconds < plans_[*fastest].trial.seconds) fastest = plan;
  if (!smallest_ || trial.memory < plans_[*smallest_].trial.memory) smallest_ = plan;
}

void TriedPlans::compare_all() {
  fastest_ = smallest_ = fastest_too_large_ = std::nullopt;
  for (size_t i = 0; i < plans_.size(); ++i) compare(i);
}

bool TriedPlans::is_short_of_memory() const {
  return fastest_too_large_ &&
         (!fastest_ || plans_[*fastest_too_large_].trial.seconds < plans_[*fastest_].trial.seconds);
}

/// Returns the indices of the plans, the best first: plans that fit before others, and among about equally fast plans
/// the simplest first.
std::vector<size_t> TriedPlans::sorted() const {
  const std::optional<size_t> best = fastest();
  const double least = best ? plans_[*best].trial.seconds : 0;
  std::vector<size_t> order(plans_.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  const auto place = [&](size_t i) {
    const Trial& trial = plans_[i].trial;
    const bool fits = trial.fits(memory_), as_good = fits && trial.seconds <= least * (1 + kSimpler);
    const double most = std::numeric_limits<double>::infinity();
    return std::tuple(!fits, !as_good, as_good ? complexity(plans_[i].choice) : 0,
                      fits                  ? trial.seconds
                      : trial.fault.empty() ? static_cast<double>(trial.memory)
                                            : most);
  };
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return place(a) < place(b); });
  return order;
}

size_t TriedPlans::settle() {
  for (;;) {
    const std::vector<size_t> order = sorted();
    if (order.empty()) throw_none_fits();
    const size_t best = order[0];
    const Trial& trial = plans_[best].trial;
    if (!trial.in_full || !trial.of_all_ranks) {
      try_in_full(best);
    } else if (trial.fits(memory_)) {
      return best;
    } else {
      throw_none_fits();
    }
  }
}

void TriedPlans::try_in_full(size_t plan) {
  const Trial sum = std::move(plans_[plan].trial);
  Trial& whole = plans_[plan].trial;
  whole = try_plan_(with_choice(job_, plans_[plan].choice), TriedRanks::all);
  if (compiled_ && *compiled_ != plan) plans_[*compiled_].trial.compiled = nullptr;  // it was not the best after all
  compiled_ = plan;
  const double ratio = whole.seconds / sum.seconds;
  if (sum.fault.empty() && whole.fault.empty() && std::abs(ratio - 1) <= kOffAlike) {
    const auto virtual_stages = [&](size_t i) { return plans_[i].choice.stages * plans_[i].choice.chunks; };
    for (size_t i = 0; i < plans_.size(); ++i) {
      const Trial& other = plans_[i].trial;
      const bool is_alike = !other.of_all_ranks && other.in_full == sum.in_full;
      if (is_alike && virtual_stages(i) == virtual_stages(plan)) plans_[i].trial.scale_time(ratio);
    }
  }
  compare_all();
}

std::vector<TriedPlan> TriedPlans::take(std::vector<size_t>& order) {
  settle();
  return take_unsettled(order);
}

std::vector<TriedPlan> TriedPlans::take_unsettled(std::vector<size_t>& order) {
  order = sorted();
  std::vector<TriedPlan> all;
  for (size_t i : order) all.push_back(std::move(plans_[i]));
  return all;
}

void TriedPlans::throw_none_fits() const {
  const TriedPlan* least = nullptr;
  std::string fault;
  for (const TriedPlan& plan : plans_) {
    if (!plan.trial.fault.empty())
      fault = plan.trial.fault;
    else if (least == nullptr || plan.trial.memory < least->trial.memory)
      least = &plan;
  }
  if (least == nullptr)
    throw NoLegalPlan({{job_.position("parallel"), "parallel",
                        fault.empty() ? "no plan for these ranks is legal with the settings that the job fixes"
                                      : "none of the plans tried is legal: " + fault,
                        "fix fewer fields of parallel"}});
  std::vector<TriedPlan> tried = plans_;
  for (TriedPlan& plan : tried) plan.trial.compiled = nullptr;
  throw NoPlanFits(job_, memory_, least->trial.memory, least->name, std::move(tried));
}

}  // namespace trainctl
