// Estimates memory and time of plans that differ from tried ones only in what they recompute.
#include "engine/search/trials/recompute_mixes.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <utility>

namespace trainctl {
namespace {

/// The memory of a plan is estimated from a tried plan that differs only in what it recomputes. A plan whose estimate
/// exceeds the limit by up to this factor may still fit.
constexpr double kMayFit = 1.03;

/// True if the plans differ at most in what they recompute.
bool differ_in_recompute(const Considered& a, const Considered& b) {
  return differences(a, b) == (recomputes_alike(a, b) ? 0 : 1);
}

/// The plans that differ from one tried plan only in what they recompute. Memory and time of an untried one are those
/// of a tried one plus the difference of their estimates.
class WaysOfPlan {
 public:
  WaysOfPlan(const TriedPlans& tried, const std::vector<Considered>& sources, size_t plan) : plan_(sources[plan]) {
    for (size_t i = 0; i < sources.size(); ++i) {
      const Trial& trial = tried[i].trial;
      if (sources[i].some || !trial.fault.empty() || !differ_in_recompute(sources[i], plan_)) continue;
      first_ = std::min(first_.value_or(i), i);
      ends_[sources[i].recompute] = {sources[i].recompute, static_cast<double>(trial.memory), trial.seconds};
    }
  }

  /// True if `plan` is the first of these plans that was tried.
  bool begins_at(size_t plan) const { return first_ == plan; }

  /// Adds the untried plans of `weighed`, with memory and time derived from the tried plan. `memory_scale` corrects the
  /// estimated difference in memory.
  void add_expected(const std::vector<Considered>& weighed, double memory_scale) {
    const RecomputeMix::End known = ends_.begin()->second;
    const auto of_known = std::find_if(weighed.begin(), weighed.end(), [&](const Considered& one) {
      return one.recompute == known.way && differ_in_recompute(one, plan_);
    });
    if (of_known == weighed.end()) return;
    for (const Considered& one : weighed) {
      if (ends_.contains(one.recompute) || !differ_in_recompute(one, plan_)) continue;
      const double memory = one.expected.memory - of_known->expected.memory,
                   seconds = one.expected.seconds - of_known->expected.seconds;
      ends_[one.recompute] = {one.recompute, known.memory + memory_scale * memory, known.seconds + seconds};
      untried_.push_back(&one);
    }
  }

  const std::map<size_t, RecomputeMix::End>& ends() const { return ends_; }
  const std::vector<const Considered*>& untried() const { return untried_; }

 private:
  const Considered& plan_;
  std::optional<size_t> first_;
  std::map<size_t, RecomputeMix::End> ends_;
  std::vector<const Considered*> untried_;
};

/// Calls use(plan, ways) once for each set of tried plans that differ only in what they recompute.
template <class Use>
void for_each_plan(const TriedPlans& tried, const std::vector<Considered>& sources,
                   const std::vector<Considered>& weighed, double memory_scale, const Use& use) {
  for (size_t i = 0; i < sources.size(); ++i) {
    if (sources[i].some) continue;
    WaysOfPlan ways(tried, sources, i);
    if (!ways.begins_at(i)) continue;
    ways.add_expected(weighed, memory_scale);
    use(sources[i], ways);
  }
}

}  // namespace

int RecomputeMix::count_for(int64_t memory) const {
  const double count = std::ceil((less.memory - static_cast<double>(memory)) / memory_per_block());
  return static_cast<int>(std::clamp(count, 1.0, static_cast<double>(blocks)));
}

std::vector<RecomputeMix> recompute_mixes(const TriedPlans& tried, const std::vector<Considered>& sources,
                                          const std::vector<Considered>& weighed, double memory_scale, int64_t memory,
                                          int blocks) {
  std::vector<RecomputeMix> mixes;
  const auto limit = static_cast<double>(memory);
  for_each_plan(tried, sources, weighed, memory_scale, [&](const Considered& plan, const WaysOfPlan& ways) {
    for (const auto& [way, less] : ways.ends())
      for (const auto& [other, more] : ways.ends()) {
        if (other <= way || less.memory <= limit || more.memory > limit || more.seconds <= less.seconds) continue;
        RecomputeMix mix{.plan = plan, .less = less, .more = more, .blocks = blocks};
        mix.plan.recompute = other;
        mixes.push_back(std::move(mix));
      }
  });
  std::stable_sort(mixes.begin(), mixes.end(), [&](const RecomputeMix& a, const RecomputeMix& b) {
    return a.seconds_with(a.count_for(memory)) < b.seconds_with(b.count_for(memory));
  });
  return mixes;
}

std::vector<Considered> untried_ways(const TriedPlans& tried, const std::vector<Considered>& sources,
                                     const std::vector<Considered>& weighed, double memory_scale, int64_t memory) {
  std::vector<Considered> found;
  for_each_plan(tried, sources, weighed, memory_scale, [&](const Considered&, const WaysOfPlan& ways) {
    for (const Considered* one : ways.untried()) {
      const RecomputeMix::End& end = ways.ends().at(one->recompute);
      if (end.memory > kMayFit * static_cast<double>(memory)) continue;
      found.push_back(*one);
      found.back().expected = {end.seconds, end.memory};
    }
  });
  std::stable_sort(found.begin(), found.end(),
                   [](const Considered& a, const Considered& b) { return a.expected.seconds < b.expected.seconds; });
  return found;
}

}  // namespace trainctl
