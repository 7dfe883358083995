// The units that a unit's choice of axes depends on. In a network of repeated blocks, layers at the same place of each
// block depend on equal units, so propagation chooses axes for one of these layers, and the others take its choice.
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
  /// Two units whose surroundings have the same kind make the same choice if the axes chosen so far for their `units`
  /// are pairwise equal.
  int kind = 0;
};

/// Returns a number for each unit; equal units with equal neighbors have equal numbers, if no layer has a strategy.
std::vector<int> unit_kinds(const Graph& graph, const std::vector<LayerFacts>& facts, const Units& units,
                            const Links& links, const Traffic& traffic);

/// Returns the surroundings of each unit. `kinds`: unit_kinds. `strategies`: one per layer.
std::vector<Surroundings> find_surroundings(const std::vector<int>& kinds, const Units& units, const Links& links,
                                            const std::vector<std::optional<LayerStrategy>>& strategies,
                                            const Traffic& traffic);

}  // namespace trainctl
