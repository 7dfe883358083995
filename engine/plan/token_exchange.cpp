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

bool counts_tokens(const Machine& machine) { return machine.kind == DeviceKind::cpu; }

TokenBlocks token_blocks(const TokenBlockQuery& query) {
  const auto pairs = static_cast<double>(query.tokens * query.top_k), ranks = static_cast<double>(query.ranks);
  TokenBlocks blocks{.tokens = query.tokens, .rows = query.tokens};
  if (!query.counted) {
    blocks.rows = std::min(query.tokens, static_cast<int64_t>(std::ceil(query.capacity * pairs / ranks)));
    return blocks;
  }
  // Probability that at least one of a token's experts is at a given rank.
  blocks.expected_share = 1 - std::pow(1 - 1 / ranks, static_cast<double>(query.top_k));
  return blocks;
}

}  // namespace trainctl
