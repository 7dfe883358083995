// Candidates for plans that recompute in some of the blocks, estimated from the plans that were tried: in some blocks
// they recompute what one plan does, in the rest what another plan does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/search/choices/weighed_choices.h"
#include "engine/search/trials/tried_plans.h"

namespace trainctl {

/// Two ways to recompute: the first needs too much memory, the second one fits. In between, memory and time are
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

/// Returns the mixes of two plans, at least one of which was tried; the mixes that are expected to be fastest come
/// first. `sources`: the choices that the tried plans were made from. `memory_scale`: see WeighedChoices::sort.
std::vector<RecomputeMix> recompute_mixes(const TriedPlans& tried, const std::vector<Considered>& sources,
                                          const std::vector<Considered>& weighed, double memory_scale, int64_t memory,
                                          int blocks);

/// Returns untried choices that are expected to fit, or nearly; the choices that are expected to be fastest come first.
/// Each differs from a tried choice only in what it recomputes, and its expected seconds and memory are those of the
/// tried plan plus the estimated difference.
std::vector<Considered> untried_ways(const TriedPlans& tried, const std::vector<Considered>& sources,
                                     const std::vector<Considered>& weighed, double memory_scale, int64_t memory);

}  // namespace trainctl
