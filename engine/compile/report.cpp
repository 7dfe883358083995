// Plan and programs -> the report of `trainctl plan`.
#include "engine/compile/report.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "engine/base/text.h"
#include "engine/ops/program_kernels.h"

namespace trainctl {

using Json = nlohmann::ordered_json;

bool communicates(const Instruction& i) {
  return i.opcode == Opcode::collective || i.opcode == Opcode::send || i.opcode == Opcode::recv;
}

namespace {

std::string kind_of(const Instruction& i) {
  return std::string(i.opcode == Opcode::collective ? to_string(i.collective) : to_string(i.opcode));
}

/// The layout of one of a layer's own tensors under the plan's axes per factor.
Layout layer_layout(const Layer& layer, const LayerPlan& plan, const TensorRule& rule) {
  Layout layout = Layout::replicated(static_cast<int>(rule.size()));
  for (size_t d = 0; d < rule.size(); ++d)
    if (const int f = cut_factor(rule[d], layer.factors); f >= 0 && !plan.factor_axes.empty())
      layout.dims[d] = plan.factor_axes[f];
  return layout;
}

Ints cuts(const Layout& layout, const Mesh& mesh) {
  Ints result;
  for (const Axes& axes : layout.dims) result.push_back(mesh.ways(axes));
  return result;
}

Json tensor_json(const Graph& graph, const Plan& plan, const Layer& layer, const LayerPlan& layer_plan, TensorId id,
                 const TensorRule& rule) {
  const Layout layout = layer_layout(layer, layer_plan, rule);
  return {{"tensor", graph.tensors[id].name},
          {"shape", graph.tensors[id].shape},
          {"cuts", cuts(layout, plan.mesh)},
          {"layout", to_string(layout, plan.mesh)}};
}

Json layer_json(const Graph& graph, const Plan& plan, size_t index) {
  const Layer& layer = graph.layers[index];
  const LayerPlan& chosen = plan.layers[index];
  Json strategy = Json::array(), inputs = Json::array(), outputs = Json::array(), factors = Json::array();
  for (size_t i = 0; i < layer.inputs.size(); ++i) {
    strategy.push_back(cuts(layer_layout(layer, chosen, layer.input_rules[i]), plan.mesh));
    inputs.push_back(tensor_json(graph, plan, layer, chosen, layer.inputs[i], layer.input_rules[i]));
  }
  for (size_t i = 0; i < layer.outputs.size(); ++i)
    outputs.push_back(tensor_json(graph, plan, layer, chosen, layer.outputs[i], layer.output_rules[i]));
  for (size_t f = 0; f < layer.factors.size(); ++f) {
    const Axes axes = chosen.factor_axes.empty() ? Axes{} : chosen.factor_axes[f];
    factors.push_back({{"name", layer.factors[f].name},
                       {"size", layer.factors[f].size},
                       {"cuts", plan.mesh.ways(axes)},
                       {"axes", axes}});
  }
  return {{"name", layer.name},
          {"type", layer.type},
          {"stage", chosen.stage},
          {"strategy", strategy},
          {"inputs", inputs},
          {"outputs", outputs},
          {"factors", factors},
          {"choice", to_string(chosen.choice)},
          {"reason", chosen.reason},
          {"would_be", chosen.would_be},
          {"recompute", chosen.recompute}};
}

/// Redistributions and transfers of one micro-batch: the same step on several groups is one row.
Json redistributions_json(const std::vector<Program>& programs) {
  using Key = std::tuple<int, std::string, std::string, std::string, int64_t>;
  std::map<Key, std::set<std::vector<int>>> groups;
  std::vector<Key> order;
  for (const Program& program : programs) {
    for (const Instruction& i : program.instructions) {
      const bool first = i.micro_batch <= 0 && !i.recompute;
      const bool moves =
          i.purpose == Purpose::redistribute || (i.purpose == Purpose::pipeline && i.opcode == Opcode::send);
      const bool rearranges =
          i.opcode == Opcode::kernel && kernel_of(i) != &copy_slice_kernel;  // packing for a collective
      if (!first || !moves || rearranges) continue;
      const std::string kind = i.opcode == Opcode::kernel ? "slice" : kind_of(i);
      Key key{program.stage, i.name, kind, i.phase == Phase::forward ? "forward" : "backward", i.bytes()};
      if (!groups.contains(key)) order.push_back(key);
      groups[key].insert(i.opcode == Opcode::collective ? program.groups[i.group]
                         : i.opcode == Opcode::send     ? std::vector<int>{program.rank, i.peer}
                                                        : std::vector<int>{program.rank});
    }
  }
  Json rows = Json::array();
  for (const Key& key : order) {
    const auto& [stage, name, kind, phase, bytes] = key;
    rows.push_back({{"stage", stage},
                    {"name", name},
                    {"kind", kind},
                    {"phase", phase},
                    {"bytes", bytes},
                    {"groups", groups[key]}});
  }
  return rows;
}

/// Calls and bytes of a step over all ranks; a collective counts once, at the first rank of its group.
Json communication_totals(const std::vector<Program>& programs) {
  struct Total {
    int64_t calls = 0, bytes = 0;
  };
  std::map<std::tuple<std::string, std::string, size_t>, Total> totals;
  for (const Program& program : programs) {
    for (const Instruction& i : program.instructions) {
      if (!communicates(i) || i.opcode == Opcode::recv) continue;
      const bool collective = i.opcode == Opcode::collective;
      if (collective && program.groups[i.group].front() != program.rank) continue;
      Total& total =
          totals[{std::string(to_string(i.purpose)), kind_of(i), collective ? program.groups[i.group].size() : 2}];
      total.calls += 1;
      total.bytes += i.bytes();
    }
  }
  Json rows = Json::array();
  for (const auto& [key, total] : totals)
    rows.push_back({{"purpose", std::get<0>(key)},
                    {"kind", std::get<1>(key)},
                    {"group_size", std::get<2>(key)},
                    {"calls", total.calls},
                    {"bytes", total.bytes}});
  return rows;
}

Json schedule_json(const Graph& graph, const Plan& plan) {
  Json stages = Json::array();
  for (int s = 0; s < plan.num_stages; ++s) {
    Json tasks = Json::array();
    for (const Task& task : stage_tasks(plan.schedule, s, plan.num_stages, plan.micro_batches, graph.loss >= 0))
      tasks.push_back((task.phase == Phase::forward ? "F" : "B") + std::to_string(task.micro_batch));
    stages.push_back({{"stage", s}, {"tasks", tasks}});
  }
  return stages;
}

Json memory_json(const Memory& m) {
  Json memory = {{"weights", m.weights}};
  if (m.master > 0) memory["master"] = m.master;
  memory["gradients"] = m.gradients;
  memory["optimizer"] = m.optimizer;
  memory["activations"] = m.activations;
  memory["buffers"] = m.buffers;
  if (m.workspace > 0) memory["workspace"] = m.workspace;
  memory["total"] = m.total();
  if (m.data_set > 0) memory["data_set"] = m.data_set;
  if (m.copy_engines > 0) memory["copy_engines"] = m.copy_engines;
  return memory;
}

Json rank_json(const Program& program) {
  Json communication = Json::array();
  for (const Instruction& i : program.instructions)
    if (communicates(i)) communication.push_back(communication_json(i, program));
  return {{"rank", program.rank},
          {"stage", program.stage},
          {"arena_bytes", program.arena_bytes},
          {"memory", memory_json(program.memory)},
          {"instructions", program.instructions.size()},
          {"communication", communication}};
}

}  // namespace

Json communication_json(const Instruction& i, const Program& program) {
  Json row = {{"kind", kind_of(i)},
              {"name", i.name},
              {"purpose", to_string(i.purpose)},
              {"phase", i.phase == Phase::forward ? "forward" : "backward"},
              {"micro_batch", i.micro_batch},
              {"bytes", i.bytes()}};
  if (i.opcode == Opcode::collective)
    row["group"] = program.groups[i.group];
  else
    row["peer"] = i.peer;
  return row;
}

Json plan_report(const JobSpec& spec, const Graph& graph, const Plan& plan, const std::vector<Program>& programs) {
  Json layers = Json::array(), ranks = Json::array();
  for (size_t i = 0; i < graph.layers.size(); ++i) layers.push_back(layer_json(graph, plan, i));
  for (const Program& program : programs) ranks.push_back(rank_json(program));
  return {{"job", spec.name},
          {"mode", to_string(plan.mode)},
          {"ranks", plan.ranks},
          {"stages", plan.num_stages},
          {"mesh", plan.mesh.axis_sizes()},
          {"micro_batches", plan.micro_batches},
          {"batch", spec.dataset.batch},
          {"schedule", to_string(plan.schedule)},
          {"precision", to_string(spec.precision)},
          {"gradient_precision", to_string(spec.gradient_precision)},
          {"optimizer_shard_level", plan.optimizer_shard_level},
          {"layers", layers},
          {"tasks", schedule_json(graph, plan)},
          {"redistributions", redistributions_json(programs)},
          {"communication", communication_totals(programs)},
          {"rank_programs", ranks},
          {"notes", plan.notes}};
}

}  // namespace trainctl
