// batch_norm with sync: false: statistics of each rank's own rows.
#pragma once

#include <string_view>

namespace trainctl {

/// An attr of nodes with such statistics. Those that read what others of their layer leave partial take the rank's own
/// term as it is, and compilation divides the attr `count` by the number of shards. Attr `dim` is that of the features.
inline constexpr std::string_view kPerRank = "per_rank";

}  // namespace trainctl
