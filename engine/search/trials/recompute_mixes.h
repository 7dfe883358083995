// Plans that recompute in some blocks what another plan recomputes in all of them, as far as tried plans tell.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/search/choices/weighed_choices.h"
#include "engine/search/trials/tried_plans.h"

namespace trainctl {

/// Two ways to recompute, of which the first is too large and the second one fits. In between, memory and time are
/// linear in the number of blocks.
struct RecomputeMix {
  struct End {
    size_t way = 0;  ///< index into OpenChoices::recompute_ways
    double memory = 0, seconds = 0;
  };
  Considered plan;  ///< the same as the second end, which all blocks would use
  End less, more;
  int blocks = 1;  ///< number of blocks of the network

  double memory_per_block() const { return (less.memory - more.memory) / blocks; }
  /// The smallest number of blocks with which the plan is expected to fit: from 1 to `blocks`.
  int count_for(int64_t memory) const;
  double seconds_with(int count) const { return less.seconds + (more.seconds - less.seconds) * count / blocks; }
};

/// The mixes of plans of which at least one was tried, those that are expected to be fastest first. `sources`: the
/// choices that the tried plans were made from. `memory_scale`: see WeighedChoices::sort.
std::vector<RecomputeMix> recompute_mixes(const TriedPlans& tried, const std::vector<Considered>& sources,
                                          const std::vector<Considered>& weighed, double memory_scale, int64_t memory,
                                          int blocks);

/// Choices that were not tried, differ in what they recompute alone from one that was, and are then expected to fit, or
/// nearly; those that are expected to be fastest first. Their expected seconds are judged by the tried one.
std::vector<Considered> untried_ways(const TriedPlans& tried, const std::vector<Considered>& sources,
                                     const std::vector<Considered>& weighed, double memory_scale, int64_t memory);

}  // namespace trainctl
