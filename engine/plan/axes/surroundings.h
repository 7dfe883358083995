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
  std::vector<int> group;  ///< the unit, and units that only follow it, directly or through each other
  std::vector<int> units;  ///< all units whose axes its choice depends on, including its group; ascending
  /// Surroundings with equal numbers: if the axes of their `units` are pairwise equal, the choices for the units of
  /// their groups are pairwise equal too.
  int kind = 0;
};

/// Returns a number for each unit; equal units with equal neighbors have equal numbers, if no layer has a strategy.
std::vector<int> unit_kinds(const Graph& graph, const std::vector<LayerFacts>& facts, const Units& units,
                            const Links& links, const Traffic& traffic);

/// By unit. `kinds`: unit_kinds. `strategies`: by layer.
std::vector<Surroundings> find_surroundings(const std::vector<int>& kinds, const Units& units, const Links& links,
                                            const std::vector<std::optional<LayerStrategy>>& strategies,
                                            const Traffic& traffic);

}  // namespace trainctl
