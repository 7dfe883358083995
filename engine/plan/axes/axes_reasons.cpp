// Sets the reasons that `trainctl plan` prints for the axes of a layer: which neighbor it follows, and which cut its
// size does not allow. Also plans the finishing nodes of a layer (units.h) whose layout differs from that of the layer.
#include <fmt/format.h>

#include "engine/base/text.h"
#include "engine/plan/axes/unit_axes.h"
#include "engine/plan/traffic/redistribution.h"

namespace trainctl {
namespace {

class Reasons {
 public:
  Reasons(const UnitAxes& chosen, const CostModel& cost, Plan& plan) : chosen_(chosen), cost_(cost), plan_(plan) {}

  void explain(LayerId l) {
    LayerPlan& layer_plan = plan_.layers[l];
    const int u = chosen_.units.of_layer[l];
    const bool is_data_parallel = layer_plan.factor_axes == chosen_.data_parallel(u);
    const FollowedNeighbor followed = followed_neighbor(u, is_data_parallel);
    if (followed.unit >= 0) {
      layer_plan.choice = Choice::propagated;
      layer_plan.reason = fmt::format("{} {}, {}", followed.is_consumer ? "matches" : "follows",
                                      chosen_.name(followed.unit), input_moves(u));
    } else if (is_data_parallel) {
      layer_plan.choice = Choice::data_parallel;
      layer_plan.reason = data_parallel_reason(chosen_.mesh, chosen_.graph.layers[l], chosen_.all_facts[l]);
    } else {
      layer_plan.choice = Choice::propagated;
      layer_plan.reason = "the cheapest layout between its neighbors, " + input_moves(u);
    }
    explain_size(u, layer_plan);
  }

  /// Plans the finishing nodes of a layer (such as the bias after a sharded contraction, see units.h) separately if
  /// their layout differs from that of the layer; if `explains`, appends the redistribution to the reason.
  void place_finish(LayerId l, bool explains) {
    const int u = chosen_.units.finish_of_layer[l];
    if (u < 0) return;
    const LayerPlan& layer_plan = plan_.layers[l];
    const std::vector<Factor>& factors = chosen_.graph.layers[l].factors;
    std::vector<std::string> names;
    for (NodeId n : chosen_.units.all[u].finishing) {
      const Node& node = chosen_.graph.nodes[n];
      NodePlan separate{.virtual_stage = layer_plan.virtual_stage};
      for (const TensorRule& rule : node.rule.inputs)
        separate.inputs.push_back(rule_layout(rule, factors, chosen_.axes[u]));
      for (const TensorRule& rule : node.rule.outputs)
        separate.outputs.push_back(rule_layout(rule, factors, chosen_.axes[u]));
      if (separate.outputs[0] == output_layout(chosen_.graph, plan_, node, 0)) continue;
      names.push_back(node.op);
      plan_.separate_nodes.emplace(node.outputs[0], std::move(separate));
    }
    if (names.empty() || !explains) return;
    std::vector<std::string> steps;
    for (const Link& link : chosen_.links.in[u])
      for (const RedistributionStep& step : redistribution_steps(link)) steps.emplace_back(to_string(step.kind));
    plan_.layers[l].reason += fmt::format("; {} after {}", join(names), join(steps));
  }

 private:
  /// The neighbor whose layout this unit adopted; unit -1 if there is none. A data-parallel unit is not counted as
  /// following a data-parallel producer, nor as matching a consumer without a strategy.
  struct FollowedNeighbor {
    int unit = -1;
    bool is_consumer = false;
  };
  FollowedNeighbor followed_neighbor(int u, bool is_data_parallel) const {
    const FactorAxes& axes = chosen_.axes[u];
    for (const Link& link : chosen_.links.in[u]) {
      const FactorAxes adopted = chosen_.after_producer(link).axes;
      const bool same = adopted == axes || without_inner_sums(chosen_.facts(u).inner, adopted) == axes ||
                        without_contractions(chosen_.layer(u), adopted) == axes;
      const bool both_data_parallel =
          is_data_parallel && plan_.layers[chosen_.units.all[link.from].layer].choice == Choice::data_parallel;
      if (same && !both_data_parallel) return {link.from, false};
    }
    for (const Link& link : chosen_.links.out[u]) {
      if (chosen_.units.all[link.to].layer == chosen_.units.all[u].layer) continue;  // the node that finishes it
      if (chosen_.before_consumer(link).axes == axes && (!is_data_parallel || chosen_.strategy(link.to) != nullptr))
        return {link.to, true};
    }
    return {};
  }

  std::vector<RedistributionStep> redistribution_steps(const Link& link) const {
    const Tensor& tensor = chosen_.graph.tensors[link.tensor];
    return plan_redistribution(chosen_.mesh, tensor.shape, tensor.dtype, chosen_.made(link), chosen_.read(link), cost_);
  }

  std::string input_moves(int u) const {
    std::vector<std::string> moves;
    for (const Link& link : chosen_.links.in[u])
      for (const RedistributionStep& step : redistribution_steps(link))
        moves.push_back(fmt::format("{} of {}", to_string(step.kind), chosen_.graph.tensors[link.tensor].name));
    return moves.empty() ? "no redistribution" : "after " + join(moves);
  }

  /// Sets cut_limit_reason and advice: the cut that was not possible because a size is not divisible, and the nearest
  /// sizes that are.
  void explain_size(int u, LayerPlan& layer_plan) const {
    const Layer& layer = chosen_.layer(u);
    const LayerFacts& facts = chosen_.facts(u);
    const auto near = [](int64_t size, int64_t want) {
      const int64_t below = size / want * want;
      return below > 0 ? fmt::format("{} or {}", below, below + want) : std::to_string(want);
    };
    layer_plan.cut_limit_reason = layer_plan.advice = "";
    const int batch = facts.batch_factor;
    if (layer_plan.choice == Choice::data_parallel && batch >= 0 && facts.why_not[batch].empty()) {
      const int64_t rows = layer.factors[batch].size;
      const int have = chosen_.mesh.ways(layer_plan.factor_axes[batch]);
      const int want = chosen_.mesh.size();
      if (have == want) return;
      layer_plan.cut_limit_reason = fmt::format("{} does not divide {}", want, rows);
      layer_plan.advice = fmt::format("the {} rows of a micro-batch are {} on {} ranks; {} rows could be cut {} ways",
                                      rows, cut_text(have), want, near(rows, want), want);
      return;
    }
    for (const Link& link : chosen_.links.in[u]) {
      const Layout arriving = chosen_.made(link);
      for (size_t d = 0; d < link.read.size(); ++d) {
        const int f = cut_factor(link.read[d], layer.factors);
        const int want = chosen_.mesh.ways(arriving.dims[d]);
        if (f < 0 || !facts.why_not[f].empty() || layer.factors[f].size % want == 0) continue;
        const int64_t size = layer.factors[f].size;
        layer_plan.cut_limit_reason = fmt::format("{} does not divide {}", want, size);
        layer_plan.advice = fmt::format("dim {} of {} is {}, which cannot be cut {} ways; {} could be", d,
                                        chosen_.graph.tensors[link.tensor].name, size, want, near(size, want));
        return;
      }
    }
  }

  const UnitAxes& chosen_;
  const CostModel& cost_;
  Plan& plan_;
};

}  // namespace

void explain_axes(const UnitAxes& chosen, const CostModel& cost, LayerId layer, Plan& plan) {
  Reasons(chosen, cost, plan).explain(layer);
}

void place_finish(const UnitAxes& chosen, const CostModel& cost, LayerId layer, bool explains, Plan& plan) {
  Reasons(chosen, cost, plan).place_finish(layer, explains);
}

}  // namespace trainctl
