// hybrid_parallel: a table of the shards of each tensor and the ranks that have them.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace trainctl {

/// `held` is that of plan_report(). Unless `full`, equal tensors share a row, and only some of many shards are listed.
std::string render_local_shards(const nlohmann::ordered_json& shards, bool full);

}  // namespace trainctl
