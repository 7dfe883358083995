// Derives strategies from parallel.expert for the layers with experts that have none in the job.
#include "engine/plan/axes/expert_strategies.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>

#include "engine/graph/rule.h"
#include "engine/ops/moe/expert_load.h"
#include "engine/plan/token_exchange.h"
#include "engine/spec/reference_model.h"

namespace trainctl {
namespace {

constexpr const char* kExpertPath = "parallel.expert";

/// Returns the number of shards of each dim of each input of the layer. The expert dim is cut `experts` ways, and dim d
/// of the layer's token input tokens[d] ways.
std::vector<Ints> cuts_of(const Layer& layer, int factor, int64_t experts, const Ints& tokens) {
  std::vector<Ints> cuts;
  for (size_t i = 0; i < layer.inputs.size(); ++i) {
    Ints of_input(layer.input_rules[i].size(), 1);
    for (size_t d = 0; d < of_input.size(); ++d) {
      const int cut = cut_factor(layer.input_rules[i][d], layer.factors);
      if (cut == factor) of_input[d] = experts;
      if (i == 0) of_input[d] = tokens[d];
    }
    cuts.push_back(std::move(of_input));
  }
  return cuts;
}

/// The cuts of each dim of the token input, `ways` in total: the batch only, or the batch and the sequence if `ways`
/// does not divide the batch. With `batch_alone` always the batch only. nullopt: no such cut divides the dims.
std::optional<Ints> token_cuts(const Graph& graph, const Layer& layer, const LayerFacts& facts, int64_t ways,
                               bool batch_alone) {
  const Tensor& x = graph.tensors[static_cast<size_t>(layer.inputs[0])];
  Ints cuts(x.shape.size(), 1);
  const int batch = x.batch.dim;
  if (batch < 0) return std::nullopt;
  if (batch_alone || x.shape[static_cast<size_t>(batch)] % ways == 0) {
    cuts[static_cast<size_t>(batch)] = ways;
    return cuts;
  }
  for (int64_t of_batch = ways; of_batch >= 1; --of_batch) {
    if (ways % of_batch != 0 || x.shape[static_cast<size_t>(batch)] % of_batch != 0) continue;
    for (size_t d = 0; d + 1 < x.shape.size(); ++d) {
      const int factor = cut_factor(layer.input_rules[0][d], layer.factors);
      if (static_cast<int>(d) == batch || factor < 0 || !facts.why_not[static_cast<size_t>(factor)].empty()) continue;
      if (layer.factors[static_cast<size_t>(factor)].size % (ways / of_batch) != 0) continue;
      cuts[static_cast<size_t>(batch)] = of_batch;
      cuts[d] = ways / of_batch;
      return cuts;
    }
  }
  return std::nullopt;
}

/// Estimated seconds of the exchanges of one layer and micro-batch, forward and backward:
///
///   gather       all_gather of x and dy, reduce_scatter of y and dx
///   all_to_all   4 exchanges of tokens (x, y, dy, dx), 3 of the size of the ids (ids, weights, dweights),
///                an all_gather of the counts, and the kernels that pack and sum the tokens
struct MethodSeconds {
  double gather = 0, all_to_all = 0;
};
/// The time of a layer of experts per micro-batch with each of the two methods by which tokens reach the ranks of their
/// experts.
MethodSeconds exchange_seconds(const Graph& graph, LayerId layer, const Mesh& mesh, int64_t ways,
                               const CostModel& cost) {
  const ExpertCall call = expert_call(graph, layer);
  const Node& node = graph.nodes[static_cast<size_t>(call.node)];
  const Tensor &x = graph.tensors[static_cast<size_t>(node.inputs[0])],
               &ids = graph.tensors[static_cast<size_t>(node.inputs[2])];
  Axes axes;  // the last axes of the mesh, which LayerStrategy::with_exchange gives to the experts too
  int64_t left = ways;
  for (Axis a = mesh.num_axes() - 1; a >= 0 && left > 1; --a) {
    if (left % mesh.axis_size(a) != 0) continue;
    left /= mesh.axis_size(a);
    axes.insert(axes.begin(), a);
  }
  const TokenBlocks blocks = token_blocks({.tokens = num_elements(ids.shape) / ids.shape.back() / mesh.size(),
                                           .top_k = ids.shape.back(),
                                           .ranks = ways,
                                           .capacity = call.capacity,
                                           .has_room_for_all = has_room_for_all(cost.machine())});
  const int64_t row = x.shape.back() * byte_size(x.dtype), whole = blocks.tokens * ways * row;
  const bool counted = moves_rows(blocks, row, cost, mesh, axes);
  const double share = counted ? blocks.expected_share : 1;
  const auto sent = static_cast<int64_t>(static_cast<double>(blocks.rows * ways * row) * share);
  const int64_t few = ways * byte_size(DType::i32), of_ids = blocks.rows * ways * ids.shape.back() * few / ways;
  MethodSeconds seconds;
  seconds.gather = 2 * cost.collective_seconds(Collective::all_gather, whole, mesh, axes) +
                   2 * cost.collective_seconds(Collective::reduce_scatter, whole, mesh, axes);
  // See MethodSeconds for the calls. Packing and summing tokens reads or writes each row 8 times, in 6 kernels.
  seconds.all_to_all = 4 * cost.collective_seconds(Collective::all_to_all, sent, mesh, axes) +
                       3 * cost.collective_seconds(Collective::all_to_all, of_ids, mesh, axes) +
                       cost.collective_seconds(Collective::all_gather, few, mesh, axes) +
                       cost.copy_seconds(8 * blocks.rows * ways * row) + 6 * cost.machine().launch.value +
                       (counted && cost.machine().kind == DeviceKind::cuda ? kSecondsOfHost : 0);
  return seconds;
}

/// Chooses the method of exchange for all layers that parallel.expert distributes, and adds a note with the reason.
ExpertMethod choose_method(const Graph& graph, const std::vector<LayerId>& layers, const JobSpec& spec,
                           const Mesh& mesh, const CostModel& cost, std::vector<std::string>& notes) {
  if (spec.parallel.expert_method != ExpertMethod::automatic) return spec.parallel.expert_method;
  MethodSeconds all;
  for (const LayerId layer : layers) {
    const MethodSeconds one = exchange_seconds(graph, layer, mesh, spec.parallel.expert, cost);
    all.gather += one.gather;
    all.all_to_all += one.all_to_all;
  }
  const ExpertMethod chosen = all.all_to_all < all.gather ? ExpertMethod::all_to_all : ExpertMethod::gather;
  notes.push_back(
      fmt::format("experts over {} ranks: {} (estimated cost per micro-batch: gather {:.3g} ms, all_to_all {:.3g} ms)",
                  spec.parallel.expert, to_string(chosen), all.gather * 1e3, all.all_to_all * 1e3));
  return chosen;
}

/// The layers with experts that parallel.expert distributes.
struct DistributedLayers {
  std::vector<LayerId> layers;
  bool can_exchange = true;  ///< the tokens of each layer can be divided evenly over all ranks
};

Diagnostic expert_error(const JobSpec& spec, std::string message, std::string hint) {
  return {spec.position(kExpertPath), kExpertPath, std::move(message), std::move(hint)};
}

/// Finds the layers that parallel.expert distributes. Returns nullopt after adding an error.
std::optional<DistributedLayers> distributed_layers(const Graph& graph, const std::vector<LayerFacts>& facts,
                                                    const JobSpec& spec, const Mesh& mesh,
                                                    std::vector<Diagnostic>& errors) {
  DistributedLayers found;
  const int64_t ways = spec.parallel.expert;
  bool has_experts = false;
  for (LayerId l = 0; l < static_cast<LayerId>(graph.layers.size()); ++l) {
    const Layer& layer = graph.layers[static_cast<size_t>(l)];
    const int factor = expert_factor(graph, l);
    if (factor < 0) continue;
    has_experts = true;
    const LayerFacts& of_layer = facts[static_cast<size_t>(l)];
    if (rule_for(spec.parallel.strategies, layer_in_job(layer.name), of_layer.is_loss) != nullptr) continue;
    const int64_t experts = layer.factors[static_cast<size_t>(factor)].size;
    if (experts % ways != 0) {
      errors.push_back(expert_error(
          spec,
          fmt::format("the {} experts of {} cannot be distributed evenly over {} ranks", experts, layer.name, ways),
          "use a divisor of the number of experts"));
      return std::nullopt;
    }
    found.layers.push_back(l);
    const bool divides = token_cuts(graph, layer, of_layer, mesh.size(), false).has_value();
    if (!divides && found.can_exchange && spec.parallel.expert_method == ExpertMethod::all_to_all) {
      errors.push_back({spec.position("parallel.expert_method"), "parallel.expert_method",
                        fmt::format("all_to_all needs tokens that are cut over all ranks, but {} ranks do not divide "
                                    "those of {}",
                                    mesh.size(), layer.name),
                        "use expert_method: gather, or another dataset.batch"});
      return std::nullopt;
    }
    found.can_exchange = found.can_exchange && divides;
  }
  if (!has_experts)
    errors.push_back(expert_error(spec, "no layer has experts", "remove parallel.expert, or use layers of type moe"));
  return found;
}

}  // namespace

std::vector<StrategySpec> expert_strategies(const Graph& graph, const std::vector<LayerFacts>& facts,
                                            const JobSpec& spec, const Mesh& mesh, const CostModel& cost,
                                            std::vector<std::string>& notes, std::vector<Diagnostic>& errors) {
  std::vector<StrategySpec> strategies;
  const int64_t ways = spec.parallel.expert;
  if (ways <= 1) return strategies;
  if (mesh.size() % ways != 0) {
    errors.push_back(expert_error(spec,
                                  fmt::format("experts over {} ranks, but {} has {} ranks", ways,
                                              spec.parallel.stages > 1 ? "a stage" : "the job", mesh.size()),
                                  "use a divisor of the number of ranks per stage"));
    return strategies;
  }
  const std::optional<DistributedLayers> distributed = distributed_layers(graph, facts, spec, mesh, errors);
  if (!distributed || distributed->layers.empty()) return strategies;
  const ExpertMethod method = distributed->can_exchange
                                  ? choose_method(graph, distributed->layers, spec, mesh, cost, notes)
                                  : ExpertMethod::gather;
  for (const LayerId l : distributed->layers) {
    const Layer& layer = graph.layers[static_cast<size_t>(l)];
    const std::string name = layer_in_job(layer.name);
    if (std::any_of(strategies.begin(), strategies.end(), [&](const StrategySpec& s) { return s.pattern == name; }))
      continue;  // a reference model repeats this layer under the same name in the job
    const int factor = expert_factor(graph, l);
    const bool exchanges = method == ExpertMethod::all_to_all;
    const auto tokens = token_cuts(graph, layer, facts[static_cast<size_t>(l)],
                                   exchanges ? mesh.size() : mesh.size() / ways, !exchanges);
    if (!tokens) continue;
    const int64_t experts = layer.factors[static_cast<size_t>(factor)].size;
    strategies.push_back({.pattern = name,
                          .cuts = cuts_of(layer, factor, ways, *tokens),
                          .path = kExpertPath,
                          .reason = fmt::format("{}: {}: {} experts per rank", kExpertPath, ways, experts / ways)});
  }
  return strategies;
}

}  // namespace trainctl
