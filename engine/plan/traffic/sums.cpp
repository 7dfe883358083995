// Places the nodes that add terms, above all the gradients of a tensor that several layers read. Each takes the
// cheapest of two kinds of layouts: that in which its sum is read, and those in which its terms are computed, given the
// layouts that were chosen for the terms.
#include "engine/plan/traffic/sums.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/base/text.h"
#include "engine/ops/named_ops.h"
#include "engine/plan/traffic/redistribution.h"

namespace trainctl {
namespace {

class SumPlacement {
 public:
  SumPlacement(const Graph& graph, const CostModel& cost, Plan& plan) : graph_(graph), cost_(cost), plan_(plan) {
    readers_.resize(graph.tensors.size());
    for (size_t n = 0; n < graph.nodes.size(); ++n)
      for (TensorId tensor : graph.nodes[n].inputs) readers_[tensor].push_back(static_cast<NodeId>(n));
  }

  void place(const Node& node) {
    NodePlan chosen{.virtual_stage = virtual_stage(node)};
    const Layout home = output_layout(graph_, plan_, node, 0);
    const Layout layout = plan_.mesh.size() == 1 || plan_.has_local_tensors() ? home : cheapest(node, home);
    if (layout == home && chosen.virtual_stage == plan_.virtual_stage_of(node)) return;
    chosen.inputs.assign(node.inputs.size(), layout);
    chosen.outputs = {layout};
    plan_.separate_nodes[node.outputs[0]] = std::move(chosen);
  }

  void explain(const Node& node) {
    if (plan_.planned_separately(node) != nullptr) {
      if (is_last(node)) plan_.layers[node.layer].reason += "; " + explanation(node, layout_of(node.outputs[0]));
      return;
    }
    if (plan_.has_local_tensors() || node.phase != Phase::backward) return;
    const Layout layout = layout_of(node.outputs[0]);
    int separate = 0;  // number of terms that are redistributed before the sum
    for (TensorId term : node.inputs)
      separate += producer_of(term) != nullptr && layout_of(term).is_partial() &&
                  !steps_between(term, layout_of(term), layout).empty();
    if (separate > 1)
      plan_.layers[node.layer].reason +=
          fmt::format("; {} terms of its gradient are summed over ranks separately", separate);
  }

 private:
  const Node* producer_of(TensorId tensor) const {
    const NodeId producer = graph_.tensors[tensor].producer;
    return producer < 0 ? nullptr : &graph_.nodes[producer];
  }

  /// Terms of a gradient that come from later stages are added in the earliest of these stages, so that only their sum
  /// is sent to the stage before.
  int virtual_stage(const Node& node) const {
    if (node.phase == Phase::forward) return plan_.virtual_stage_of(node);
    int earliest = plan_.num_virtual_stages();
    for (TensorId term : node.inputs) earliest = std::min(earliest, plan_.virtual_stage_of(*producer_of(term)));
    return earliest;
  }

  /// True unless another addition of the same stage reads the sum in the same layout.
  bool is_last(const Node& node) const {
    return std::none_of(readers_[node.outputs[0]].begin(), readers_[node.outputs[0]].end(), [&](NodeId id) {
      const Node& reader = graph_.nodes[id];
      return adds_terms(graph_, reader) && plan_.virtual_stage_of(reader) == plan_.virtual_stage_of(node) &&
             layout_of(reader.outputs[0]) == layout_of(node.outputs[0]);
    });
  }

  /// "terms of its gradient are added in stage 1, before reduce_scatter".
  std::string explanation(const Node& node, const Layout& layout) const {
    const bool backward = node.phase == Phase::backward;
    std::string text = backward ? "terms of its gradient are added" : "its terms are added";
    const int stage = plan_.virtual_stage_of(node);
    if (stage != plan_.layers[node.layer].virtual_stage) text += " in " + plan_.stage_text(stage);
    std::vector<std::string> steps;
    for (const Layout& wanted : layouts_read(node))
      for (const RedistributionStep& step : steps_between(node.outputs[0], layout, wanted))
        steps.emplace_back(to_string(step.kind));
    if (!steps.empty()) text += fmt::format("{} before {}", text.back() == 'd' ? "" : ",", join(steps));
    return text;
  }

  Layout layout_of(TensorId tensor) const {
    const Node& node = *producer_of(tensor);
    const auto output = std::find(node.outputs.begin(), node.outputs.end(), tensor) - node.outputs.begin();
    return output_layout(graph_, plan_, node, static_cast<int>(output));
  }

  std::vector<RedistributionStep> steps_between(TensorId tensor, const Layout& from, const Layout& to) const {
    const Tensor& t = graph_.tensors[tensor];
    return plan_redistribution(plan_.mesh, t.shape, t.dtype, from, to, cost_);
  }
  double seconds(TensorId tensor, const Layout& from, const Layout& to) const {
    const Tensor& t = graph_.tensors[tensor];
    return redistribution_seconds(plan_.mesh, t.shape, t.dtype, steps_between(tensor, from, to), cost_);
  }

  /// The layouts in which others read the node's output, each once.
  std::vector<Layout> layouts_read(const Node& node) const {
    std::vector<Layout> layouts;
    for (NodeId reader : readers_[node.outputs[0]]) {
      const auto& inputs = graph_.nodes[reader].inputs;
      const auto input = std::find(inputs.begin(), inputs.end(), node.outputs[0]) - inputs.begin();
      Layout layout = input_layout(graph_, plan_, graph_.nodes[reader], static_cast<int>(input));
      if (std::find(layouts.begin(), layouts.end(), layout) == layouts.end()) layouts.push_back(std::move(layout));
    }
    return layouts;
  }

  /// The layout of a sum that takes the least redistribution of its terms and for its readers: that of one of the
  /// terms, or `home`.
  Layout cheapest(const Node& node, const Layout& home) const {
    std::vector<Layout> terms;
    for (TensorId term : node.inputs) {
      if (producer_of(term) == nullptr) return home;  // a parameter or an input
      terms.push_back(layout_of(term));
    }
    // The axes over which every term is a partial sum. Over any other axis some term is complete and would be counted
    // several times.
    Axes partial = terms[0].partial;
    for (const Layout& term : terms)
      std::erase_if(partial, [&](Axis a) { return !std::count(term.partial.begin(), term.partial.end(), a); });
    const std::vector<Layout> wanted = layouts_read(node);
    const auto total = [&](const Layout& layout) {
      double sum = 0;
      for (size_t i = 0; i < terms.size(); ++i) sum += seconds(node.inputs[i], terms[i], layout);
      for (const Layout& reader : wanted) sum += seconds(node.outputs[0], layout, reader);
      return sum;
    };
    Layout best = home;
    double least = total(home);
    for (Layout& candidate : terms) {
      candidate.partial = partial;
      if (node.phase == Phase::forward && candidate.dims != home.dims) continue;  // the layer's strategy fixes it
      const double sum = total(candidate);
      if (sum < least * (1 - 1e-9)) best = candidate, least = sum;
    }
    return best;
  }

  const Graph& graph_;
  const CostModel& cost_;
  Plan& plan_;
  std::vector<std::vector<NodeId>> readers_;
};

}  // namespace

bool adds_terms(const Graph& graph, const Node& node) {
  return &get_op(node.op) == &add_op && std::all_of(node.inputs.begin(), node.inputs.end(), [&](TensorId input) {
    return graph.tensors[input].shape == graph.tensors[node.outputs[0]].shape;
  });
}

void place_sums(const Graph& graph, const CostModel& cost, bool explains, Plan& plan) {
  SumPlacement placement(graph, cost, plan);
  for (const Node& node : graph.nodes)
    if (adds_terms(graph, node)) placement.place(node);
  for (const Node& node : graph.nodes)
    if (explains && adds_terms(graph, node)) placement.explain(node);
}

}  // namespace trainctl
