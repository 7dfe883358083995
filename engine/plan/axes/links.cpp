// Finds the tensors that connect units, in one walk over the forward nodes.
#include "engine/plan/axes/links.h"

#include <algorithm>

#include "engine/graph/contraction.h"

namespace trainctl {
namespace {

bool has_factor(const TensorRule& rule, int factor) {
  return std::any_of(rule.begin(), rule.end(),
                     [factor](const DimRule& dim) { return std::find(dim.begin(), dim.end(), factor) != dim.end(); });
}

bool keeps_every_factor(const Graph& graph, const Layer& layer) {
  for (TensorId t : layer.inputs) {
    const TensorKind kind = graph.tensors[t].kind;
    if (kind != TensorKind::input && kind != TensorKind::activation) return false;
  }
  for (const TensorRule& rule : layer.output_rules) {
    for (int f = 0; f < static_cast<int>(layer.factors.size()); ++f) {
      if (layer.factors[f].size > 1 && !has_factor(rule, f)) return false;
    }
  }
  return !layer.output_rules.empty();
}

}  // namespace

/// The tensors that connect units, by the unit that produces and the unit that reads each. A shared parameter links its
/// later readers to the first one.
Links find_links(const Graph& graph, const Units& units) {
  Links links;
  links.in.resize(units.all.size());
  links.out.resize(units.all.size());
  for (const Unit& unit : units.all)
    links.passes_through.push_back(unit.finishes() || keeps_every_factor(graph, graph.layers[unit.layer]));
  struct FirstUse {
    int unit = -1;
    TensorRule rule;
  };
  std::vector<FirstUse> first_use(graph.tensors.size());
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    if (node.phase != Phase::forward) continue;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const TensorId t = node.inputs[i];
      const Tensor& tensor = graph.tensors[t];
      Link link{t, -1, units.of_node[n], {}, {}, node.rule.inputs[i], 0};
      if (tensor.producer >= 0) {
        const Node& maker = graph.nodes[tensor.producer];
        link.from = units.of_node[tensor.producer];
        link.from_rule = maker.rule;
        link.output =
            static_cast<int>(std::find(maker.outputs.begin(), maker.outputs.end(), t) - maker.outputs.begin());
        link.made = maker.rule.outputs[link.output];
      } else if (tensor.kind == TensorKind::parameter) {
        FirstUse& first = first_use[t];
        if (first.unit < 0) first = {units.of_node[n], node.rule.inputs[i]};
        link.from = first.unit;
        link.made = first.rule;
      }
      if (link.from < 0 || link.from == link.to) continue;
      links.out[link.from].push_back(link);
      links.in[link.to].push_back(link);
    }
  }
  for (size_t u = 0; u < units.all.size(); ++u) {
    const std::vector<Link>& in = links.in[u];
    links.only_follows.push_back(links.passes_through[u] && in.size() == 1 && !contracts(in[0].from_rule));
  }
  return links;
}

}  // namespace trainctl
