// Stages follow the data: a layer is never in an earlier stage than what it reads.
#include "engine/plan/stages/stages.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "engine/base/text.h"
#include "engine/ops/op_def.h"

namespace trainctl {
namespace {

// The layers in execution order.
std::vector<LayerId> execution_order(const Graph& graph) {
  std::vector<LayerId> order;
  std::vector<bool> seen(graph.layers.size(), false);
  for (const Node& node : graph.nodes) {
    if (!seen[node.layer]) order.push_back(node.layer);
    seen[node.layer] = true;
  }
  for (LayerId l = 0; l < static_cast<LayerId>(seen.size()); ++l) {
    if (!seen[l]) order.push_back(l);
  }
  return order;
}

/// "1, 2 or 4": the numbers of stages, up to `most`, that the ranks divide into.
std::string fewer_stages(const JobSpec& spec, int most) {
  std::string text;
  for (int stages = std::min(most, spec.launch.ranks); stages >= 1; --stages) {
    if (spec.launch.ranks % stages != 0) continue;
    const bool is_second = !text.empty() && text.find(" or ") == std::string::npos;
    text = std::to_string(stages) + (text.empty() ? "" : is_second ? " or " : ", ") + text;
  }
  return text;
}

int num_virtual_stages(const JobSpec& spec) { return spec.parallel.stages * spec.parallel.chunks; }

/// "4 stages", "2 stages of 3 chunks".
std::string stages_text(const JobSpec& spec) {
  const std::string stages = fmt::format("{} stages", spec.parallel.stages);
  return spec.parallel.chunks == 1 ? stages : fmt::format("{} of {} chunks", stages, spec.parallel.chunks);
}

int latest(const std::vector<int>& stages, const std::vector<LayerId>& layers) {
  int stage = 0;
  for (LayerId l : layers) stage = std::max(stage, stages[l]);
  return stage;
}

/// The virtual stage of each layer such that the slowest stage takes the least time.
std::vector<int> balanced_stages(const Graph& graph, const std::vector<LayerFacts>& facts, const JobSpec& spec,
                                 const std::vector<std::vector<LayerId>>& producers, const CostModel& cost,
                                 const std::vector<double>& stage_speeds, std::vector<Diagnostic>& errors) {
  const int num_stages = num_virtual_stages(spec);
  const std::vector<double> of_node = node_seconds(graph, cost);
  std::vector<double> of_layer(graph.layers.size(), 0);
  for (size_t n = 0; n < graph.nodes.size(); ++n) of_layer[graph.nodes[n].layer] += of_node[n];
  std::vector<LayerId> placed;
  for (LayerId l : execution_order(graph)) {
    if (!facts[l].is_loss) placed.push_back(l);
  }
  std::vector<int> stages(graph.layers.size(), 0);
  if (static_cast<int>(placed.size()) < num_stages) {
    errors.push_back({spec.position("parallel.stages"), "parallel.stages",
                      fmt::format("{}, but the network has only {}, and every {} needs at least one", stages_text(spec),
                                  plural(static_cast<int64_t>(placed.size()), "layer"),
                                  spec.parallel.chunks == 1 ? "stage" : "chunk"),
                      "use " + fewer_stages(spec, static_cast<int>(placed.size()) / spec.parallel.chunks)});
    return stages;
  }
  std::vector<double> costs;
  for (LayerId l : placed) costs.push_back(of_layer[l]);
  std::vector<double> speeds;
  for (int stage = 0; stage < num_stages && !stage_speeds.empty(); ++stage)
    speeds.push_back(stage_speeds[static_cast<size_t>(stage % spec.parallel.stages)]);
  const std::vector<int> chosen = balanced_partition(costs, num_stages, speeds);
  for (size_t i = 0; i < placed.size(); ++i) stages[placed[i]] = chosen[i];
  for (LayerId l = 0; l < static_cast<LayerId>(stages.size()); ++l) {
    if (facts[l].is_loss) stages[l] = latest(stages, producers[l]);
  }
  return stages;
}

/// The virtual stage of each layer by parallel.stage_config; other layers are in the latest stage of their producers.
std::vector<int> configured_stages(const Graph& graph, const std::vector<LayerFacts>& facts, const JobSpec& spec,
                                   const std::vector<std::vector<LayerId>>& producers,
                                   std::vector<Diagnostic>& errors) {
  const int num_stages = num_virtual_stages(spec);
  std::vector<int> stages(graph.layers.size(), 0);
  for (LayerId l : execution_order(graph)) {
    const std::string& name = graph.layers[l].name;
    stages[l] = latest(stages, producers[l]);
    const StageRule* rule = rule_for(spec.parallel.stage_config, name, facts[l].is_loss);
    if (rule == nullptr) continue;
    if (rule->stage < 0 || rule->stage >= num_stages) {
      errors.push_back(
          {spec.position(rule->path), rule->path,
           fmt::format("{} is assigned to stage {}, but there are only {}", name, rule->stage, stages_text(spec)),
           fmt::format("stages are numbered from 0 to {}", num_stages - 1)});
      continue;
    }
    for (LayerId p : producers[l]) {
      if (stages[p] <= rule->stage) continue;
      // If one rule assigns both too early, only the first is reported.
      if (rule_for(spec.parallel.stage_config, graph.layers[p].name, facts[p].is_loss) == rule) continue;
      errors.push_back(
          {spec.position(rule->path), rule->path,
           fmt::format("{} is assigned to stage {}, but it reads {}, which is in stage {}", name, rule->stage,
                       graph.layers[p].name, stages[p]),
           fmt::format("a layer can read only from its own and earlier stages: use stage {} or later", stages[p])});
      break;
    }
    stages[l] = std::max(stages[l], rule->stage);
  }
  return stages;
}

void check_none_empty(const std::vector<int>& stages, const JobSpec& spec, std::vector<Diagnostic>& errors) {
  const bool chunked = spec.parallel.chunks > 1;
  for (int s = 0; s < num_virtual_stages(spec); ++s) {
    if (std::find(stages.begin(), stages.end(), s) != stages.end()) continue;
    const std::string fewer = chunked ? "parallel.chunks to less than " + std::to_string(spec.parallel.chunks)
                                      : "parallel.stages to " + fewer_stages(spec, spec.parallel.stages - 1);
    errors.push_back(
        {spec.position("parallel.stage_config"), "parallel.stage_config",
         fmt::format("{}stage {} of {} has no layer", chunked ? "virtual " : "", s, num_virtual_stages(spec)),
         "assign a layer or the loss to it, or set " + fewer +
             " and adapt stage_config; with parallel.stage_config=null, trainctl chooses the stages"});
  }
}

}  // namespace

std::vector<std::vector<LayerId>> layer_producers(const Graph& graph) {
  std::vector<std::vector<LayerId>> producers(graph.layers.size());
  for (const Node& node : graph.nodes) {
    if (node.phase != Phase::forward) continue;
    for (TensorId t : node.inputs) {
      const NodeId p = graph.tensors[t].producer;
      if (p >= 0 && graph.nodes[p].layer != node.layer) producers[node.layer].push_back(graph.nodes[p].layer);
    }
  }
  for (std::vector<LayerId>& of_layer : producers) {
    std::sort(of_layer.begin(), of_layer.end());
    of_layer.erase(std::unique(of_layer.begin(), of_layer.end()), of_layer.end());
  }
  return producers;
}

std::vector<double> node_seconds(const Graph& graph, const CostModel& cost) {
  std::vector<double> seconds;
  const auto infos = [&](const std::vector<TensorId>& tensors) {
    std::vector<TensorInfo> list;
    for (TensorId t : tensors) list.push_back({graph.tensors[t].shape, graph.tensors[t].dtype});
    return list;
  };
  for (const Node& node : graph.nodes) {
    const OpDef& op = get_op(node.op);
    const bool has_cost = op.kernel.cost != nullptr && !op.collective;
    seconds.push_back(
        has_cost ? cost.compute_seconds(op.kernel.cost(infos(node.inputs), infos(node.outputs), node.attrs)) : 0.0);
  }
  return seconds;
}

std::vector<int> balanced_partition(const std::vector<double>& costs, int num_stages,
                                    const std::vector<double>& speeds) {
  const int n = static_cast<int>(costs.size());
  check(num_stages >= 1 && num_stages <= n, "every stage has an item");
  std::vector<double> sum(n + 1, 0);
  for (int i = 0; i < n; ++i) sum[i + 1] = sum[i] + costs[i];
  // Dynamic programming. worst[p][i] is the time of the slowest stage if the first i items are divided into p stages in
  // the best way. cut[p][i] is the item with which the last of these stages begins.
  std::vector worst(num_stages + 1, std::vector<double>(n + 1, std::numeric_limits<double>::infinity()));
  std::vector cut(num_stages + 1, std::vector<int>(n + 1, 0));
  worst[0][0] = 0;
  for (int p = 1; p <= num_stages; ++p) {
    const double speed = speeds.empty() ? 1 : speeds[static_cast<size_t>(p - 1)];
    const auto last = [&](int begin, int end) { return (sum[end] - sum[begin]) / speed; };
    for (int i = p; i <= n - (num_stages - p); ++i) {
      // If the last stage begins earlier, it takes longer and the stages before it take less. The maximum of both is
      // least where they cross. Among equal costs, the shortest last stage is taken.
      const std::vector<double>& before = worst[p - 1];
      int cross = p - 1;
      for (int end = i; cross < end;) {
        const int middle = (cross + end) / 2;
        before[middle] < last(middle, i) ? cross = middle + 1 : end = middle;
      }
      if (cross > p - 1) {
        worst[p][i] = last(cross - 1, i);
        cut[p][i] = cross - 1;
      }
      if (cross < i && before[cross] <= worst[p][i]) {
        worst[p][i] = before[cross];
        cut[p][i] = static_cast<int>(std::upper_bound(before.begin() + cross, before.begin() + i, before[cross]) -
                                     before.begin()) -
                    1;
      }
    }
  }
  std::vector<int> stage_of(n, 0);
  for (int p = num_stages, end = n; p > 0; --p) {
    for (int i = cut[p][end]; i < end; ++i) stage_of[i] = p - 1;
    end = cut[p][end];
  }
  return stage_of;
}

std::vector<int> assign_stages(const Graph& graph, const std::vector<LayerFacts>& facts, const JobSpec& spec,
                               const CostModel& cost, const std::vector<double>& stage_speeds,
                               std::vector<Diagnostic>& errors) {
  if (spec.parallel.stages == 1 && spec.parallel.stage_config.empty()) {
    return std::vector<int>(graph.layers.size(), 0);
  }
  const std::vector<std::vector<LayerId>> producers = layer_producers(graph);
  const bool balanced = spec.parallel.stage_config.empty();
  const size_t errors_before = errors.size();
  std::vector<int> stages = balanced ? balanced_stages(graph, facts, spec, producers, cost, stage_speeds, errors)
                                     : configured_stages(graph, facts, spec, producers, errors);
  if (errors.size() == errors_before) check_none_empty(stages, spec, errors);
  return stages;
}

}  // namespace trainctl
