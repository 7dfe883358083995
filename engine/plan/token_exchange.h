// Nodes of experts whose ranks exchange tokens: the ranks share the tokens too, and each token is sent only to the
// ranks of its experts. The blocks of an exchange:
//
//   rank i sends to rank j   [rows, features]   the tokens of i that have an expert at j, in their order, then padding
//
// If the size of a transfer can be determined when it runs (ranks on CPUs), a block has room for all tokens of a rank,
// and only the rows that are used are moved. Otherwise whole blocks are moved, which have room for `capacity` times the
// mean number of (token, expert) pairs.
#pragma once

#include <cstdint>

#include "engine/plan/plan.h"

namespace trainctl {

/// The axes over which such a node exchanges tokens, major first; empty for all other nodes.
Axes token_exchange_axes(const Graph& graph, const Plan& plan, const Node& node);

/// True if the size of a transfer is determined when it runs.
bool counts_tokens(const Machine& machine);

struct TokenBlockQuery {
  int64_t tokens = 0;  ///< tokens of one rank
  int64_t top_k = 1;
  int64_t ranks = 1;  ///< ranks that share the experts
  double capacity = 1;
  bool counted = false;  ///< counts_tokens()
};
struct TokenBlocks {
  int64_t tokens = 0;
  int64_t rows = 0;           ///< rows of a block
  double expected_share = 1;  ///< part of the rows of all blocks that is moved if each expert is equally probable
};
TokenBlocks token_blocks(const TokenBlockQuery& query);

}  // namespace trainctl
