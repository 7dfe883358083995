// Nodes of experts whose ranks exchange tokens: the ranks share the tokens too, and each token is sent only to the
// ranks of its experts.
#include "engine/plan/token_exchange.h"

#include <algorithm>
#include <cmath>

#include "engine/ops/moe/token_exchange.h"

namespace trainctl {

Axes token_exchange_axes(const Graph& graph, const Plan& plan, const Node& node) {
  const std::optional<ExpertOperands> at = expert_operands(node);
  if (!at || plan.hybrid() || plan.mesh.size() == 1) return {};
  const Axes experts = input_layout(graph, plan, node, static_cast<int>(at->up())).dims[0];
  Axes tokens;
  const Layout x = input_layout(graph, plan, node, static_cast<int>(at->x()));
  for (const Axes& axes : x.dims) tokens.insert(tokens.end(), axes.begin(), axes.end());
  const bool shared = std::all_of(experts.begin(), experts.end(), [&](Axis axis) {
    return std::find(tokens.begin(), tokens.end(), axis) != tokens.end();
  });
  return shared ? experts : Axes{};
}

bool has_room_for_all(const Machine& machine) { return machine.kind == DeviceKind::cpu; }

TokenBlocks token_blocks(const TokenBlockQuery& query) {
  const auto pairs = static_cast<double>(query.tokens * query.top_k), ranks = static_cast<double>(query.ranks);
  TokenBlocks blocks{.tokens = query.tokens, .rows = query.tokens};
  // Probability that at least one of a token's experts is at a given rank.
  blocks.expected_share = 1 - std::pow(1 - 1 / ranks, static_cast<double>(query.top_k));
  if (query.has_room_for_all) return blocks;
  blocks.rows = std::min(query.tokens, static_cast<int64_t>(std::ceil(query.capacity * pairs / ranks)));
  const double rows_per_token = static_cast<double>(blocks.rows) / static_cast<double>(query.tokens);
  blocks.expected_share = std::min(1.0, blocks.expected_share / rows_per_token);
  return blocks;
}

bool moves_rows(const TokenBlocks& blocks, int64_t row_bytes, const CostModel& cost, const Mesh& mesh,
                const Axes& axes) {
  if (has_room_for_all(cost.machine())) return true;
  constexpr double kExchanges = 4;  // x, y, dy, dx
  const int64_t whole = blocks.rows * mesh.ways(axes) * row_bytes;
  const auto used = static_cast<int64_t>(static_cast<double>(whole) * blocks.expected_share);
  const double saved = cost.collective_seconds(Collective::all_to_all, whole, mesh, axes) -
                       cost.collective_seconds(Collective::all_to_all, used, mesh, axes);
  return kExchanges * saved > kSecondsOfHost;
}

}  // namespace trainctl
