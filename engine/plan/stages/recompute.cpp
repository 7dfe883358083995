// Chooses the layers that the backward pass computes again (parallel.recompute).
#include "engine/plan/stages/recompute.h"

#include <fmt/format.h>

#include <algorithm>

namespace trainctl {
namespace {

bool is_number(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace

std::string_view block_of(std::string_view layer) {
  for (size_t begin = 0; begin < layer.size();) {
    const size_t end = std::min(layer.find('.', begin), layer.size());
    if (end < layer.size() && is_number(layer.substr(begin, end - begin))) return layer.substr(0, end);
    begin = end + 1;
  }
  return {};
}

std::vector<bool> outputs_of_blocks(const Graph& graph) {
  std::vector<bool> leaves(graph.layers.size());
  for (const Node& node : graph.nodes) {
    if (node.phase != Phase::forward) continue;
    const std::string_view reader = block_of(graph.layers[static_cast<size_t>(node.layer)].name);
    for (TensorId input : node.inputs) {
      const NodeId maker = graph.tensors[static_cast<size_t>(input)].producer;
      if (maker < 0) continue;
      const auto layer = static_cast<size_t>(graph.nodes[static_cast<size_t>(maker)].layer);
      const std::string_view block = block_of(graph.layers[layer].name);
      if (!block.empty() && block != reader) leaves[layer] = true;
    }
  }
  return leaves;
}

RecomputedLayers recomputed_layers(const Graph& graph, const std::vector<LayerFacts>& facts,
                                   const std::vector<RecomputeRule>& rules) {
  RecomputedLayers result{std::vector<bool>(graph.layers.size()), {}};
  if (rules.empty()) return result;
  const std::vector<bool> leaves = outputs_of_blocks(graph);
  for (size_t l = 0; l < graph.layers.size(); ++l) {
    if (rule_for(rules, graph.layers[l].name, facts[l].is_loss) == nullptr) continue;
    result.of_layer[l] = !leaves[l];
    if (leaves[l]) result.kept.push_back(static_cast<LayerId>(l));
  }
  return result;
}

std::string note_on_kept_outputs(const Graph& graph, const RecomputedLayers& layers) {
  if (layers.kept.empty()) return "";
  const std::string& first = graph.layers[static_cast<size_t>(layers.kept.front())].name;
  const std::string others =
      layers.kept.size() == 1 ? "" : fmt::format(" and of {} more layers", layers.kept.size() - 1);
  return fmt::format("recompute keeps the outputs of blocks: the output of {}{} is stored", first, others);
}

}  // namespace trainctl
