// Plans a job that is written as text, for the planner's tests.
#include "tests/plan/planned.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "engine/base/text.h"
#include "engine/model/model.h"
#include "engine/spec/parse.h"

namespace trainctl {

const LayerPlan& Planned::layer(std::string_view name) const { return plan.layers[graph.find_layer(name).value()]; }

std::string Planned::cuts(std::string_view layer) const {
  std::vector<std::string> words;
  for (const Ints& of_input : layer_cuts(graph, plan, graph.find_layer(layer).value())) {
    words.push_back(format_list(of_input));
  }
  return "[" + join(words) + "]";
}

Layout Planned::in(std::string_view layer) const {
  return layer_inputs(graph, plan, graph.find_layer(layer).value()).front();
}

Layout Planned::out(std::string_view layer) const {
  return layer_outputs(graph, plan, graph.find_layer(layer).value()).front();
}

const VariablePlan& Planned::variable(std::string_view tensor) const {
  return plan.variable(graph.find_tensor(tensor).value());
}

std::vector<std::string> Planned::moves(Phase phase) const {
  std::vector<std::string> found;
  std::set<std::pair<TensorId, Layout>> had;
  for (const Node& node : graph.nodes) {
    for (int i = 0; i < static_cast<int>(node.inputs.size()); ++i) {
      const TensorId t = node.inputs[i];
      const NodeId producer = graph.tensors[t].producer;
      if (producer < 0) continue;
      const Node& maker = graph.nodes[producer];
      const int o = static_cast<int>(std::find(maker.outputs.begin(), maker.outputs.end(), t) - maker.outputs.begin());
      const Layout to = input_layout(graph, plan, node, i);
      if (!had.emplace(t, to).second || node.phase != phase) continue;
      for (const RedistributionStep& step :
           plan_redistribution(plan.mesh, graph.tensors[t].shape, graph.tensors[t].dtype,
                               output_layout(graph, plan, maker, o), to, CostModel())) {
        found.push_back(fmt::format("{} {}", to_string(step.kind), graph.tensors[t].name));
      }
    }
  }
  return found;
}

Graph graph_of(const JobSpec& spec) {
  return build_graph(spec, data_and_label(spec.dataset.shape, spec.dataset.label_shape, spec.dataset.dtype == "i32",
                                          spec.dataset.label_dtype == "i32"));
}

Planned planned(const std::string& yaml, const std::vector<std::string>& overrides) {
  Planned result;
  result.spec = parse_job(yaml, "job.yaml", overrides);
  result.graph = graph_of(result.spec);
  result.plan = make_plan(result.graph, result.spec, CostModel());
  return result;
}

std::vector<std::string> plan_errors(const std::string& yaml, const std::vector<std::string>& overrides) {
  const JobSpec spec = parse_job(yaml, "job.yaml", overrides);
  const Graph graph = graph_of(spec);
  std::vector<std::string> lines;
  try {
    make_plan(graph, spec, CostModel());
  } catch (const SpecError& error) {
    for (const Diagnostic& d : error.diagnostics()) {
      lines.push_back(fmt::format("{}:{}: {}: {}{}{}", d.pos.line, d.pos.column, d.path, d.message,
                                  d.hint.empty() ? "" : " | ", d.hint));
    }
  }
  return lines;
}

std::string dataset(int64_t batch, const std::string& shape, const std::string& label_shape) {
  return fmt::format("dataset: {{type: random, batch: {}, shape: {}, label_shape: {}, label_dtype: f32}}\n", batch,
                     shape, label_shape);
}

std::string broken_rule(const Planned& planned) {
  const Plan& plan = planned.plan;
  const Graph& graph = planned.graph;
  for (size_t l = 0; l < graph.layers.size(); ++l) {
    const Layer& layer = graph.layers[l];
    const LayerPlan& chosen = plan.layers[l];
    if (chosen.factor_axes.size() != layer.factors.size()) return layer.name + ": not one entry per factor";
    if (chosen.reason.empty()) return layer.name + ": no reason";
    std::set<Axis> used;
    for (size_t f = 0; f < layer.factors.size(); ++f) {
      for (Axis a : chosen.factor_axes[f]) {
        if (!used.insert(a).second) return layer.name + ": an axis is used twice";
      }
      if (layer.factors[f].size % plan.mesh.ways(chosen.factor_axes[f]) != 0) return layer.name + ": does not divide";
      if (!layer.factors[f].cuttable && !chosen.factor_axes[f].empty()) return layer.name + ": cuts what may not be";
    }
  }
  for (const Node& node : graph.nodes) {
    for (int i = 0; i < static_cast<int>(node.inputs.size()); ++i) {
      const Layout layout = input_layout(graph, plan, node, i);
      layout.local_shape(plan.mesh, graph.tensors[node.inputs[i]].shape);  // throws if a cut does not divide
      if (layout.is_partial() && layout != output_layout(graph, plan, node, 0))
        return node.name + ": reads a partial sum";
    }
    for (int o = 0; o < static_cast<int>(node.outputs.size()); ++o) {
      output_layout(graph, plan, node, o).local_shape(plan.mesh, graph.tensors[node.outputs[o]].shape);
    }
    for (TensorId t : node.inputs) {
      const NodeId producer = graph.tensors[t].producer;
      if (node.phase == Phase::forward && producer >= 0 &&
          plan.virtual_stage_of(graph.nodes[producer]) > plan.virtual_stage_of(node)) {
        return node.name + ": reads from a later stage";
      }
    }
  }
  for (const VariablePlan& variable : plan.variables) {
    if (variable.layout.is_partial()) return "a variable is partial";
    for (NodeId n : graph.consumers(variable.tensor)) {
      const int stage = plan.stage_of(graph.nodes[n]);
      if (std::find(variable.stages.begin(), variable.stages.end(), stage) == variable.stages.end()) {
        return graph.tensors[variable.tensor].name + ": is not kept by a stage that reads it";
      }
    }
  }
  return "";
}

}  // namespace trainctl
