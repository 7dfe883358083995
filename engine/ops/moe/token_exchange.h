// The exchange of tokens between ranks that share experts and tokens (compile/lower/exchange_tokens.cpp): kernels that
// only compiled programs use. A rank has a block of rows for each of the ranks that share the experts:
//
//   rows [ranks, rows]       the token of each row; -1: the row is not used. A token has one row in the block of each
//                            rank that has some of its experts, in the order of tokens
//   places [ranks, tokens]   the row of each token; -1: it has none
//   counts [ranks]           rows that are used
//   blocks [ranks, rows, c]  numbers of these tokens, 0 (ids: -1) in rows that are not used
#pragma once

#include <optional>

#include "engine/graph/graph.h"
#include "engine/ops/kernel_def.h"

namespace trainctl {

/// Positions of the operands of a node of experts (experts.cpp).
struct ExpertOperands {
  size_t first = 0;  ///< 1 for the gradient, whose input 0 is dy

  bool is_grad() const { return first > 0; }
  size_t x() const { return first; }
  size_t weights() const { return first + 1; }
  size_t ids() const { return first + 2; }
  size_t up() const { return first + 3; }
  size_t down() const { return first + 4; }
  size_t kept() const { return first + 5; }  ///< an input of the gradient alone
  /// Index of the first optional input after these: the biases of both products; for the gradient, only that of the
  /// second product.
  size_t biases() const { return first + (is_grad() ? 6 : 5); }
};
/// nullopt: the node does not compute experts.
std::optional<ExpertOperands> expert_operands(const Node& node);

/// Attribute of `experts` and its gradient: the expected number of (token, expert) pairs, where the shape of ids counts
/// rows that are not used.
inline constexpr const char* kExpectedPairs = "pairs";

/// ids [.., k] i32 -> rows, places, counts; attrs experts_per_rank, ranks, rows (per block). If a block is too
/// small, the run ends.
extern const KernelDef place_tokens_kernel;
/// x [.., c], rows -> blocks
extern const KernelDef pack_tokens_kernel;
/// blocks, places -> [.., c]: the sum of a token's rows, in the order of ranks
extern const KernelDef sum_tokens_kernel;

}  // namespace trainctl
