// parallel.expert: strategies of the layers with experts that have none of their own.
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

/// One strategy for each such layer: its experts over parallel.expert ranks, and the batch over as many ranks as there
/// are groups of those (gather) or over all ranks (all_to_all). `notes` gets the choice between the two. Errors are
/// added to `errors`.
std::vector<StrategySpec> expert_strategies(const Graph& graph, const std::vector<LayerFacts>& facts,
                                            const JobSpec& spec, const Mesh& mesh, const CostModel& cost,
                                            std::vector<std::string>& notes, std::vector<Diagnostic>& errors);

}  // namespace trainctl
