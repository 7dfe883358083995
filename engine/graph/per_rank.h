// batch_norm with sync: false: statistics of each rank's own rows.
#pragma once

#include <string_view>

namespace trainctl {

/// The attr that marks nodes with such statistics. If a node of a layer leaves a result as a partial sum, a marked node
/// that reads it takes the rank's own term as it is, without a sum over ranks. The compiler divides the attr `count`
/// (number of values per feature) by the number of shards. The attr `dim` is the dim of the features.
inline constexpr std::string_view kPerRank = "per_rank";

}  // namespace trainctl
