// The axes of a graph's units during propagation, and the layouts of the tensors between units that follow from them. A
// unit (units.h) is a layer, or the nodes that finish the result of its contraction, such as the bias of a dense layer.
// A link (links.h) is a tensor that one unit writes and another one reads.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/graph/graph.h"
#include "engine/plan/axes/candidates.h"
#include "engine/plan/axes/links.h"
#include "engine/plan/axes/sharding_facts.h"
#include "engine/plan/axes/strategies.h"
#include "engine/plan/axes/units.h"
#include "engine/plan/plan.h"
#include "engine/plan/plan_memo.h"

namespace trainctl {

/// The arguments of the constructor must outlive the object, which refers to them.
class UnitAxes {
 public:
  UnitAxes(const Graph& of, const GraphFacts& facts, const std::vector<std::optional<LayerStrategy>>& given,
           const Mesh& on)
      : graph(of),
        all_facts(facts.layers),
        strategies(given),
        mesh(on),
        units(facts.units),
        links(facts.links),
        axes(units.all.size()) {}

  const Graph& graph;
  const std::vector<LayerFacts>& all_facts;                     ///< by layer
  const std::vector<std::optional<LayerStrategy>>& strategies;  ///< by layer
  const Mesh& mesh;
  const Units& units;
  const Links& links;
  std::vector<FactorAxes> axes;  ///< by unit; empty: not chosen yet

  int num_units() const { return static_cast<int>(units.all.size()); }
  const Layer& layer(int u) const { return graph.layers[units.all[u].layer]; }
  const LayerFacts& facts(int u) const { return all_facts[units.all[u].layer]; }
  const std::string& name(int u) const { return layer(u).name; }
  /// A strategy for a layer does not apply to the unit that finishes it.
  const LayerStrategy* strategy(int u) const {
    const std::optional<LayerStrategy>& given = strategies[units.all[u].layer];
    return given && !units.all[u].finishes() ? &*given : nullptr;
  }
  bool is_chosen(int u) const { return axes[u].size() == layer(u).factors.size(); }
  FactorAxes data_parallel(int u) const { return data_parallel_axes(mesh, layer(u), facts(u)); }

  /// The layout in which the producer of the link writes its tensor.
  Layout made(const Link& link) const {
    const FactorAxes& from = axes[link.from];
    Layout layout = rule_layout(link.made, layer(link.from).factors, from);
    if (!link.from_rule.outputs.empty()) layout.partial = partial_axes(link.from_rule, link.output, from);
    return layout;
  }
  /// The layout in which the consumer of the link reads its tensor.
  Layout read(const Link& link) const { return rule_layout(link.read, layer(link.to).factors, axes[link.to]); }
  /// The axes with which the consumer would read the tensor as the producer writes it.
  Following after_producer(const Link& link) const {
    return follow(mesh, layer(link.to), facts(link.to), link.read, made(link));
  }
  /// The axes with which the producer would write the tensor as the consumer reads it.
  Following before_consumer(const Link& link) const {
    return follow(mesh, layer(link.from), facts(link.from), link.made, read(link));
  }
};

/// Sets choice, reason, cut_limit_reason and advice of a layer that no strategy fixes.
void explain_axes(const UnitAxes& chosen, const CostModel& cost, LayerId layer, Plan& plan);

/// Sets `plan.separate_nodes` for the finishing nodes of the layer whose layout differs from that of the layer; if
/// `explains`, appends the redistribution to the reason.
void place_finish(const UnitAxes& chosen, const CostModel& cost, LayerId layer, bool explains, Plan& plan);

}  // namespace trainctl
