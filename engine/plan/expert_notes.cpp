// Notes of a plan about its mixtures of experts: how many experts a rank has, and how many rows they receive.
#include "engine/plan/expert_notes.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/text.h"
#include "engine/ops/moe/expert_load.h"
#include "engine/plan/token_exchange.h"

namespace trainctl {
namespace {

ExpertShare share_of(const Graph& graph, const Plan& plan, LayerId layer, int factor) {
  const Axes& axes = plan.layers[static_cast<size_t>(layer)].factor_axes[static_cast<size_t>(factor)];
  const int64_t all = graph.layers[static_cast<size_t>(layer)].factors[static_cast<size_t>(factor)].size;
  return {all / plan.mesh.ways(axes), all};
}

/// Numbers that a rank keeps for one token and one of its experts: at least capacity times the mean.
int64_t numbers_kept(const Graph& graph, const Node& node) {
  const Shape& kept = graph.tensors[static_cast<size_t>(node.outputs[1])].shape;
  return kept[kept.size() - 2] * kept.back();
}
int64_t numbers_of_row(const Graph& graph, const Node& node) {
  const Shape& up = graph.tensors[static_cast<size_t>(node.inputs[3])].shape;
  return up[1] * up[2];
}

/// "8 of 64 experts per rank; of a micro-batch they receive 512 (token, expert) rows if loads are equal, …"
std::string expert_note(const Graph& graph, const Plan& plan, const CostModel& cost, LayerId layer, int factor) {
  const Layer& of_layer = graph.layers[static_cast<size_t>(layer)];
  const std::vector<Axes>& axes = plan.layers[static_cast<size_t>(layer)].factor_axes;
  const auto [per_rank, experts] = share_of(graph, plan, layer, factor);
  const ExpertCall call = expert_call(graph, layer);
  const Node& node = graph.nodes[static_cast<size_t>(call.node)];
  int64_t pairs = num_elements(graph.tensors[static_cast<size_t>(node.inputs[2])].shape);
  for (const DimRule& dim : node.rule.inputs[2])
    if (const int cut = cut_factor(dim, of_layer.factors); cut >= 0)
      pairs /= plan.mesh.ways(axes[static_cast<size_t>(cut)]);
  const Axes exchange = token_exchange_axes(graph, plan, node);
  const int64_t ranks = plan.mesh.ways(exchange);  // a rank has the pairs of 1 / ranks of the tokens
  pairs *= ranks;
  const int64_t experts_per_token = graph.tensors[static_cast<size_t>(node.inputs[2])].shape.back();
  const int64_t mean = pairs * per_rank / experts;
  const int64_t most = pairs / experts_per_token * per_rank * numbers_kept(graph, node) / numbers_of_row(graph, node);
  const std::string bytes_of_row = fmt::format("each with {} bytes that are kept", with_commas(call.bytes_of_row));
  std::string text = fmt::format(
      "{} of {} experts per rank; of each micro-batch they receive {} rows of tokens if all loads are "
      "equal, and at most {}, {}",
      per_rank, experts, with_commas(mean), with_commas(std::min(pairs, most)), bytes_of_row);
  if (exchange.empty()) return text;
  const Tensor& x = graph.tensors[static_cast<size_t>(node.inputs[0])];
  const TokenBlocks blocks = token_blocks({.tokens = pairs / ranks / experts_per_token,
                                           .top_k = experts_per_token,
                                           .ranks = ranks,
                                           .capacity = call.capacity,
                                           .has_room_for_all = has_room_for_all(cost.machine())});
  // Counts the blocks that a rank sends: all blocks but its own.
  const int64_t row_bytes = x.shape.back() * byte_size(x.dtype), maximum = blocks.rows * (ranks - 1) * row_bytes;
  const bool counted = moves_rows(blocks, row_bytes, cost, plan.mesh, exchange);
  const auto expected = static_cast<int64_t>(static_cast<double>(maximum) * (counted ? blocks.expected_share : 1));
  text += fmt::format("; a token is sent to the ranks of its experts: a rank sends {} at most, expected {}",
                      format_bytes(maximum), format_bytes(expected));
  if (!counted) text += " (as whole blocks, which is faster here than waiting for the numbers of rows)";
  return text;
}

}  // namespace

std::vector<ExpertShare> expert_shares(const Graph& graph, const Plan& plan) {
  std::vector<ExpertShare> shares;
  if (plan.hybrid()) return shares;
  for (LayerId l = 0; l < static_cast<LayerId>(graph.layers.size()); ++l) {
    const int factor = expert_factor(graph, l);
    if (factor < 0) continue;
    const ExpertShare share = share_of(graph, plan, l, factor);
    if (std::find(shares.begin(), shares.end(), share) == shares.end()) shares.push_back(share);
  }
  return shares;
}

void note_experts(const Graph& graph, const CostModel& cost, Plan& plan) {
  if (plan.hybrid()) return;
  std::vector<std::pair<std::string, std::vector<std::string>>> notes;
  for (LayerId l = 0; l < static_cast<LayerId>(graph.layers.size()); ++l) {
    const int factor = expert_factor(graph, l);
    if (factor < 0) continue;
    const std::string note = expert_note(graph, plan, cost, l, factor);
    auto found = std::find_if(notes.begin(), notes.end(), [&](const auto& known) { return known.first == note; });
    if (found == notes.end()) found = notes.insert(notes.end(), {note, {}});
    found->second.push_back(graph.layers[static_cast<size_t>(l)].name);
  }
  for (const auto& [note, layers] : notes) {
    const std::string more = layers.size() > 1 ? fmt::format(" and {} more", layers.size() - 1) : "";
    plan.notes.push_back(layers.front() + more + ": " + note);
  }
}

}  // namespace trainctl
