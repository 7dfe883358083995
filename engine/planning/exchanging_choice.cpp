// auto_parallel: plans in which ranks exchange tokens for their experts (engine/plan/token_exchange.h).
#include "engine/planning/exchanging_choice.h"

#include <algorithm>
#include <set>
#include <string>

#include "engine/ops/moe/expert_load.h"
#include "engine/plan/axes/sharding_facts.h"
#include "engine/spec/reference_model.h"

namespace trainctl {
namespace {

/// The ways to cut a factor of the layer, in cuts per dim of its inputs.
int64_t ways_of(const Layer& layer, const std::vector<Ints>& cuts, int factor) {
  for (size_t i = 0; i < std::min(cuts.size(), layer.input_rules.size()); ++i)
    for (size_t d = 0; d < cuts[i].size(); ++d)
      if (cut_factor(layer.input_rules[i][d], layer.factors) == factor) return cuts[i][d];
  return 1;
}

}  // namespace

std::optional<PlanChoice> exchanging_choice(const Graph& graph, const PlanChoice& choice) {
  PlanChoice exchanging = choice;
  std::set<size_t> changed;
  for (LayerId l = 0; l < static_cast<LayerId>(graph.layers.size()); ++l) {
    const Layer& layer = graph.layers[static_cast<size_t>(l)];
    const int factor = expert_factor(graph, l);
    if (factor < 0) continue;
    const StrategySpec* of_layer = rule_for(choice.strategies, layer_in_job(layer.name), false);
    if (of_layer == nullptr || of_layer->cuts.empty()) continue;
    const auto index = static_cast<size_t>(of_layer - choice.strategies.data());
    const int64_t experts = ways_of(layer, of_layer->cuts, factor);
    if (experts == 1 || changed.contains(index)) continue;
    const Tensor& x = graph.tensors[static_cast<size_t>(layer.inputs[0])];
    if (x.batch.dim < 0) return std::nullopt;
    int64_t& batch = exchanging.strategies[index].cuts[0][static_cast<size_t>(x.batch.dim)];
    batch *= experts;
    if (x.shape[static_cast<size_t>(x.batch.dim)] % batch != 0) return std::nullopt;
    changed.insert(index);
  }
  return changed.empty() ? std::nullopt : std::optional(exchanging);
}

}  // namespace trainctl
