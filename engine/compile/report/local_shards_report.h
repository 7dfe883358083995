// hybrid_parallel: the report of which ranks hold which part of which tensor.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "engine/plan/plan.h"

namespace trainctl {

/// In the order of the layers: what each reads that no layer makes (data, parameters), then what it makes. Blocks are
/// counted in row-major order over `cuts`, then over `terms`; docs/planning.md lists the fields.
nlohmann::ordered_json local_shards_report(const Graph& graph, const Plan& plan, bool full_batch);

}  // namespace trainctl
