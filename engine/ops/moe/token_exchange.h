// The exchange of tokens between ranks that share experts and tokens: kernels that only compiled programs use.
//
//   places [ranks, tokens]   the row of a token in the block for a rank; -1: the rank has none of its experts
//   counts [ranks]           rows of each block that are used
//   blocks [ranks, rows, c]  a row for each token in `places`, then zeros (ids: -1)
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
};
/// nullopt: the node is none.
std::optional<ExpertOperands> expert_operands(const Node& node);

/// Attribute of `experts` and its gradient: the expected number of (token, expert) pairs, where the shape of ids counts
/// padding.
inline constexpr const char* kExpectedPairs = "pairs";

/// ids [.., k] i32 -> places, counts; attrs held (experts of a rank), rows. A block that is too small stops the run.
extern const KernelDef place_tokens_kernel;
/// x [.., c], places -> blocks; attr rows
extern const KernelDef pack_tokens_kernel;
/// blocks, places -> [.., c]: the sum of a token's rows, in the order of ranks
extern const KernelDef sum_tokens_kernel;

}  // namespace trainctl
