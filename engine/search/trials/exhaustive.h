// Tries every plan that a job can express (search.algorithm: exhaustive), as a reference for other searches.
#pragma once

#include "engine/search/find_plan.h"

namespace trainctl {

/// The largest number of plans for which the exhaustive search runs. With more, it throws SpecError at
/// parallel.search.algorithm.
inline constexpr int64_t kMostExhaustive = 20'000;

/// All cuts of all layers without a strategy, combined with everything else that is open. Layers at the same place of
/// repeated blocks have the same cuts.
FoundPlan find_exhaustively(const JobSpec& job, const DataShapes& data, const CostModel& cost, int64_t memory,
                            const TryPlan& try_plan);

}  // namespace trainctl
