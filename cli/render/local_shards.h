// hybrid_parallel: a table of the shards of each tensor and the ranks that have them.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace trainctl {

/// `shards` is plan_report()'s "local_shards". Unless `full`, equal tensors share a row, and only some of many shards
/// are listed. `width`: columns of a line; 0: unlimited.
std::string render_local_shards(const nlohmann::ordered_json& shards, bool full, size_t width);

}  // namespace trainctl
