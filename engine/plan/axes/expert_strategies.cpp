// See the header.
#include "engine/plan/axes/expert_strategies.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "engine/graph/rule.h"
#include "engine/ops/moe/expert_load.h"
#include "engine/spec/reference_model.h"

namespace trainctl {
namespace {

constexpr const char* kExpertPath = "parallel.expert";

/// Cuts of every input of the layer: experts `experts` ways, the batch `rows` ways.
std::vector<Ints> cuts_of(const Graph& graph, const Layer& layer, int factor, int64_t experts, int64_t rows) {
  std::vector<Ints> cuts;
  for (size_t i = 0; i < layer.inputs.size(); ++i) {
    const BatchRows& batch = graph.tensors[static_cast<size_t>(layer.inputs[i])].batch;
    Ints of_input(layer.input_rules[i].size(), 1);
    for (size_t d = 0; d < of_input.size(); ++d) {
      const int cut = cut_factor(layer.input_rules[i][d], layer.factors);
      if (cut == factor) of_input[d] = experts;
      if (static_cast<int>(d) == batch.dim) of_input[d] = rows;
    }
    cuts.push_back(std::move(of_input));
  }
  return cuts;
}

}  // namespace

std::vector<StrategySpec> expert_strategies(const Graph& graph, const std::vector<LayerFacts>& facts,
                                            const JobSpec& spec, const Mesh& mesh, std::vector<Diagnostic>& errors) {
  std::vector<StrategySpec> strategies;
  const int64_t ways = spec.parallel.expert;
  if (ways <= 1) return strategies;
  const auto fail = [&](std::string message, std::string hint) {
    errors.push_back({spec.position(kExpertPath), kExpertPath, std::move(message), std::move(hint)});
  };
  if (mesh.size() % ways != 0) {
    fail(fmt::format("experts over {} ranks, but {} has {} ranks", ways,
                     spec.parallel.stages > 1 ? "a stage" : "the job", mesh.size()),
         "use a divisor of the number of ranks per stage");
    return strategies;
  }
  bool has_experts = false;
  for (LayerId l = 0; l < static_cast<LayerId>(graph.layers.size()); ++l) {
    const Layer& layer = graph.layers[static_cast<size_t>(l)];
    const int factor = expert_factor(graph, l);
    if (factor < 0) continue;
    has_experts = true;
    const std::string name = layer_in_job(layer.name);
    if (rule_for(spec.parallel.strategies, name, facts[static_cast<size_t>(l)].is_loss) != nullptr) continue;
    const int64_t experts = layer.factors[static_cast<size_t>(factor)].size;
    if (experts % ways != 0) {
      fail(fmt::format("the {} experts of {} cannot be distributed evenly over {} ranks", experts, layer.name, ways),
           "use a divisor of the number of experts");
      return strategies;
    }
    if (std::any_of(strategies.begin(), strategies.end(), [&](const StrategySpec& s) { return s.pattern == name; }))
      continue;  // its reference model
    strategies.push_back({.pattern = name,
                          .cuts = cuts_of(graph, layer, factor, ways, mesh.size() / ways),
                          .path = kExpertPath,
                          .reason = fmt::format("{}: {}: {} experts per rank", kExpertPath, ways, experts / ways)});
  }
  if (!has_experts) fail("no layer has experts", "remove parallel.expert, or use layers of type moe");
  return strategies;
}

}  // namespace trainctl
