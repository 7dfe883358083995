// Results that a search that plans one graph many times reuses from plan to plan.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/plan/axes/links.h"
#include "engine/plan/axes/sharding_facts.h"
#include "engine/plan/axes/surroundings.h"
#include "engine/plan/axes/units.h"
#include "engine/plan/plan.h"
#include "engine/plan/traffic/cost_model.h"
#include "engine/plan/traffic/traffic.h"

namespace trainctl {

/// Facts that depend only on a graph.
struct GraphFacts {
  explicit GraphFacts(const Graph& graph)
      : layers(sharding_facts(graph)), units(find_units(graph)), links(find_links(graph, units)) {}

  const std::vector<LayerFacts> layers;
  const Units units;
  const Links links;
};

/// The traffic of a graph on a mesh, with the moves that it has priced. Refers to the facts.
struct MeshTraffic {
  MeshTraffic(const Graph& graph, const GraphFacts& facts, const Mesh& on, const CostModel& cost, int micro_batches)
      : mesh(on),
        traffic(graph, facts.units, mesh, cost, micro_batches),
        kinds(unit_kinds(graph, facts.layers, facts.units, facts.links, traffic)) {}
  MeshTraffic(const MeshTraffic&) = delete;

  const Mesh mesh;
  Traffic traffic;
  const std::vector<int> kinds;  ///< unit_kinds
};

/// Results shared by plans of one graph, with one number of micro-batches, on one machine.
struct PlanMemo {
  std::unique_ptr<const GraphFacts> facts;
  std::map<int, std::unique_ptr<MeshTraffic>> traffic;  ///< by number of ranks per stage
  /// launch.machine as a list: relative speeds of the ranks of each stage; empty: all are equal.
  std::vector<double> stage_speeds;
  /// False: plans are only compared, so their reasons are left out.
  bool explains = true;
  /// The axes that propagation chose, by unit; the key is the mesh, the number of micro-batches and the strategies.
  std::map<std::string, std::vector<FactorAxes>> axes;
};

/// Gives layers that have a strategy its reason, and its position in this job. The plan is otherwise that of this job.
void explain_strategies(const Graph& graph, const JobSpec& spec, Plan& plan);

/// Equal to make_plan without a memo.
Plan make_plan(const Graph& graph, const JobSpec& spec, const CostModel& cost, PlanMemo& memo);

}  // namespace trainctl
