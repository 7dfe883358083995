// Nodes of experts whose ranks exchange tokens: the ranks share the tokens too, and each token is sent only to the
// ranks of its experts. The blocks of an exchange:
//
//   rank i sends to rank j   [rows, features]   the tokens of i that have an expert at j, in their order, then padding
//
// Ranks on CPUs have blocks with room for all tokens of a rank; on GPUs a block has room for `capacity` times the mean
// number of (token, expert) pairs. The ranks first send each other the numbers of their rows, and then only these rows.
// On GPUs the hosts then wait for these numbers, and the step is no fixed graph, so there the ranks do this only if it
// takes less time than to move whole blocks.
#pragma once

#include <cstdint>

#include "engine/plan/plan.h"
#include "engine/plan/traffic/cost_model.h"

namespace trainctl {

/// The axes over which such a node exchanges tokens, major first; empty for all other nodes.
Axes token_exchange_axes(const Graph& graph, const Plan& plan, const Node& node);

/// True if a block has room for all tokens of a rank.
bool has_room_for_all(const Machine& machine);

struct TokenBlockQuery {
  int64_t tokens = 0;  ///< tokens of one rank
  int64_t top_k = 1;
  int64_t ranks = 1;  ///< ranks that share the experts
  double capacity = 1;
  bool has_room_for_all = false;
};
struct TokenBlocks {
  int64_t tokens = 0;
  int64_t rows = 0;           ///< rows of a block
  double expected_share = 1;  ///< part of the rows of all blocks that is used if each expert is equally probable
};
TokenBlocks token_blocks(const TokenBlockQuery& query);

/// Seconds by which a step of GPUs is longer for each time that their hosts wait for the numbers of rows.
inline constexpr double kSecondsOfHost = 100e-6;

/// True if only the rows that are used are moved. `row_bytes`: of x; the ranks along `axes` exchange.
bool moves_rows(const TokenBlocks& blocks, int64_t row_bytes, const CostModel& cost, const Mesh& mesh,
                const Axes& axes);

}  // namespace trainctl
