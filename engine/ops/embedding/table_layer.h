// Finds layers whose weights can be tables of parameter servers: integers of the only input choose rows of the only
// weight. Also lists the fields that only matter to those.
#pragma once

#include <string_view>

#include "engine/ops/layer_def.h"

namespace trainctl {

/// The field of such a layer that counts the rows; empty for all other layers.
std::string_view table_rows_field(const LayerDef& layer);

inline constexpr const char* kCachedBatches = "cached_batches";
inline constexpr const char* kAdmitAfter = "admit_after";
inline constexpr const char* kExpireAfter = "expire_after";
inline constexpr int64_t kMostCachedBatches = 1000, kMostSightings = 1'000'000;

}  // namespace trainctl
