// hybrid_parallel: reports which ranks have which part of each tensor.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "engine/plan/plan.h"

namespace trainctl {

/// In the order of the layers: the tensors that each reads and no layer produces (data, parameters), then its outputs.
/// Blocks are counted in row-major order over `cuts`, then over `terms`; docs/planning.md lists the fields.
nlohmann::ordered_json local_shards_report(const Graph& graph, const Plan& plan, bool full_batch);

}  // namespace trainctl
