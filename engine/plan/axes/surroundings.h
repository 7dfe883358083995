// The units that a unit's choice of axes depends on. Layers at the same place of repeated blocks depend on the same, so
// propagation chooses for one of them and the others take its choice.
#pragma once

#include <optional>
#include <vector>

#include "engine/graph/graph.h"
#include "engine/plan/axes/links.h"
#include "engine/plan/axes/sharding_facts.h"
#include "engine/plan/axes/strategies.h"
#include "engine/plan/axes/units.h"
#include "engine/plan/traffic/traffic.h"

namespace trainctl {

struct Surroundings {
  std::vector<int> group;  ///< the unit, and those that only follow it or one another
  std::vector<int> units;  ///< all whose axes its choice depends on, its group among them; ascending
  /// Equal numbers: if the axes of `units` are equal too, one by one, so is the choice of each unit of `group`.
  int kind = 0;
};

/// By unit: units that are equal and have equal neighbours get equal numbers, if no layer has a strategy.
std::vector<int> unit_kinds(const Graph& graph, const std::vector<LayerFacts>& facts, const Units& units,
                            const Links& links, const Traffic& traffic);

/// By unit. `kinds`: unit_kinds. `strategies`: by layer.
std::vector<Surroundings> find_surroundings(const std::vector<int>& kinds, const Units& units, const Links& links,
                                            const std::vector<std::optional<LayerStrategy>>& strategies,
                                            const Traffic& traffic);

}  // namespace trainctl
