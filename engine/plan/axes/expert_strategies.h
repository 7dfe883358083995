// parallel.expert: derives strategies for the layers with experts for which the job gives none.
#pragma once

#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/graph/graph.h"
#include "engine/plan/axes/sharding_facts.h"
#include "engine/plan/mesh.h"
#include "engine/plan/traffic/cost_model.h"
#include "engine/spec/job_spec.h"

namespace trainctl {

/// Returns one strategy for each such layer. Its experts are sharded over groups of parallel.expert ranks. The batch is
/// sharded over the groups (gather) or over all ranks (all_to_all); a note about which of the two was chosen is added
/// to `notes`. Adds errors to `errors`.
std::vector<StrategySpec> expert_strategies(const Graph& graph, const std::vector<LayerFacts>& facts,
                                            const JobSpec& spec, const Mesh& mesh, const CostModel& cost,
                                            std::vector<std::string>& notes, std::vector<Diagnostic>& errors);

}  // namespace trainctl
