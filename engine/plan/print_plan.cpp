// A plan as text, one line per layer: `trainctl show plan`.
#include <fmt/format.h>

#include <algorithm>

#include "engine/base/text.h"
#include "engine/plan/plan.h"

namespace trainctl {
namespace {

std::string layouts_text(const Plan& plan, const std::vector<Layout>& layouts) {
  std::vector<std::string> words;
  for (const Layout& layout : layouts) words.push_back(to_string(layout, plan.mesh));
  return words.empty() ? "-" : join(words, " ");
}

std::string stages_text(const std::vector<int>& stages) {
  std::vector<std::string> words;
  for (int s : stages) words.push_back(std::to_string(s));
  return (stages.size() == 1 ? "stage " : "stages ") + join(words, ",");
}

std::string header_line(const Plan& plan) {
  std::string line = fmt::format("plan: {}, {} ranks = {} stages x {} (mesh {}), {} micro-batches, {}",
                                 to_string(plan.mode), plan.ranks, plan.num_stages, plan.mesh.size(),
                                 to_string(plan.mesh), plan.micro_batches, to_string(plan.schedule));
  if (plan.chunks > 1) line += fmt::format(", {} chunks per stage", plan.chunks);
  if (plan.optimizer_shard_level > 0) line += fmt::format(", optimizer_shard level {}", plan.optimizer_shard_level);
  if (plan.shard_axes) line += " within a host";
  if (plan.gradient_type != DType::f32) line += fmt::format(", gradients in {}", to_string(plan.gradient_type));
  return line + "\n";
}

}  // namespace

std::vector<Ints> layer_cuts(const Graph& graph, const Plan& plan, LayerId layer) {
  std::vector<Ints> cuts;
  for (const Layout& layout : layer_inputs(graph, plan, layer)) {
    Ints& of_input = cuts.emplace_back();
    for (const Axes& axes : layout.dims) of_input.push_back(plan.mesh.ways(axes));
  }
  return cuts;
}

std::vector<Layout> layer_inputs(const Graph& graph, const Plan& plan, LayerId layer) {
  std::vector<Layout> layouts;
  for (const TensorRule& rule : graph.layers[layer].input_rules) {
    layouts.push_back(rule_layout(rule, graph.layers[layer].factors, plan.layers[layer].factor_axes));
  }
  return layouts;
}

std::vector<Layout> layer_outputs(const Graph& graph, const Plan& plan, LayerId layer) {
  std::vector<Layout> layouts;
  for (TensorId t : graph.layers[layer].outputs) {
    const NodeId producer = graph.tensors[t].producer;
    if (producer < 0) continue;
    const Node& node = graph.nodes[producer];
    const auto o = std::find(node.outputs.begin(), node.outputs.end(), t) - node.outputs.begin();
    layouts.push_back(output_layout(graph, plan, node, static_cast<int>(o)));
  }
  return layouts;
}

std::string to_string(const Plan& plan, const Graph& graph) {
  std::string text = header_line(plan);
  size_t name_width = 0;
  for (const Layer& layer : graph.layers) name_width = std::max(name_width, layer.name.size());
  for (LayerId l = 0; l < static_cast<LayerId>(graph.layers.size()); ++l) {
    const Layer& layer = graph.layers[l];
    const LayerPlan& chosen = plan.layers[l];
    std::vector<std::string> cuts;
    for (const Ints& of_input : layer_cuts(graph, plan, l)) cuts.push_back(format_list(of_input));
    text += fmt::format(
        "  {:<{}}  {}  [{}]  in {}  out {}  {}{}\n", layer.name, name_width, plan.stage_text(chosen.virtual_stage),
        join(cuts), layouts_text(plan, layer_inputs(graph, plan, l)), layouts_text(plan, layer_outputs(graph, plan, l)),
        chosen.recompute ? "recompute; "
        : chosen.offload ? "offload; "
                         : "",
        chosen.reason);
  }
  for (const VariablePlan& variable : plan.variables) {
    text += fmt::format("  {} {} {}  {}\n", graph.tensors[variable.tensor].name, to_string(variable.global_shape),
                        to_string(variable.layout, plan.mesh), stages_text(variable.stages));
  }
  for (const std::string& note : plan.notes) text += "  note: " + note + "\n";
  return text;
}

}  // namespace trainctl
