// Values that their readers compute themselves, from inputs that are kept anyway, so that they need no memory:
//
//   a low-rank product and its sum     y + p q, with few columns in p (adapters): "x0 l1 +"
//   a function of one kept value       silu(x), which the backward pass of a gated layer reads beside x: "x0 silu"
//
// All readers are element-wise kernels, which fuse_elementwise rewrites. In its fused form, reading p and q costs
// little, because they have few columns.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/compile/compiler.h"

namespace trainctl {

/// A product p q counts as low-rank if p has at most this many columns.
inline constexpr int64_t kMostLowRank = 64;

/// True if `v` computes p q, with or without a residual, in a form that element-wise expressions have; p has few
/// columns.
bool is_low_rank_product(const VirtualInstruction& v);

/// The way in which readers compute a value.
struct InlinedValue {
  size_t instruction = 0;  ///< index of the instruction that computed the value and is removed
  bool is_low_rank = false;
  std::string token;              ///< token of the product, without its index, or of the function
  std::vector<BufferId> sources;  ///< all that it is computed from
};

/// Returns for each buffer how its readers compute its value, or nullopt if it is written to memory. `tokens` has the
/// element-wise function of each instruction, or "".
std::vector<std::optional<InlinedValue>> inlined_values(const Compiler& c, const std::vector<std::string>& tokens);

}  // namespace trainctl
