// The sizes of a call of `experts` or `experts_grad`, from the shapes of this rank's operands.
#pragma once

#include <algorithm>
#include <numeric>
#include <string>

#include "engine/ops/kernel_def.h"

namespace trainctl {

/// The function between the two products of an expert. Gated ones multiply act(gate) by the second part of `up`. With
/// clamped_swiglu (gpt-oss) the gate is at most kClampLimit and the second part u between -kClampLimit and kClampLimit:
/// gate * sigmoid(kClampRate * gate) * (u + 1).
enum class ExpertActivation : uint8_t { clamped_swiglu, swiglu, geglu, silu, gelu, relu };

inline constexpr float kClampLimit = 7.0f, kClampRate = 1.702f;

inline ExpertActivation expert_activation(const Attrs& attrs) {
  const std::string name = attrs.text("function", "swiglu");
  if (name == "clamped_swiglu") return ExpertActivation::clamped_swiglu;
  if (name == "swiglu") return ExpertActivation::swiglu;
  if (name == "geglu") return ExpertActivation::geglu;
  if (name == "silu") return ExpertActivation::silu;
  return name == "gelu" ? ExpertActivation::gelu : ExpertActivation::relu;
}
constexpr bool is_gated(ExpertActivation activation) { return activation <= ExpertActivation::geglu; }

struct ExpertsSize {
  int64_t tokens = 0, features = 0;
  int64_t top_k = 0;               ///< experts of a token
  int64_t experts = 0, first = 0;  ///< held by this rank: experts [first, first + experts)
  int64_t parts = 1, hidden = 0;   ///< `up` makes parts x hidden numbers of a row
  int64_t rows = 0;                ///< (token, expert) pairs that this rank has memory for
  bool adds_down_bias = false;     ///< this rank has the first hidden features, so it adds the second bias

  int64_t inner() const { return parts * hidden; }

  /// `ids` [.., k], `up` [experts, parts, hidden, features], and the operand that keeps rows of parts x hidden.
  static ExpertsSize of(const Shape& ids, const Shape& up, const Shape& kept) {
    ExpertsSize n;
    n.top_k = ids.back();
    n.tokens = num_elements(ids) / std::max<int64_t>(1, n.top_k);
    n.experts = up[0], n.parts = up[1], n.hidden = up[2], n.features = up[3];
    n.rows = std::min(n.tokens * n.top_k, num_elements(kept) / std::max<int64_t>(1, n.inner()));
    return n;
  }
};

/// A GPU sorts pairs into rows in chunks of this many.
inline constexpr int64_t kPairsOfChunk = 256;

/// Numbers in scratch memory that describe the rows: one per expert and chunk, expert, row, and pair.
inline int64_t ints_of_rows(const ExpertsSize& n) {
  const int64_t pairs = n.tokens * n.top_k;
  return n.experts * ((pairs + kPairsOfChunk - 1) / kPairsOfChunk) + 2 * n.experts + 1 + 2 * n.rows + pairs;
}

/// Bytes of scratch memory on a GPU, for numbers of 4 bytes: the order of the rows, and for each row a and the result,
/// or da, a, du and the gradient of x.
inline int64_t experts_scratch(const ExpertsSize& n, bool backward) {
  const int64_t of_row = n.features + n.hidden + (backward ? n.hidden + n.inner() : 0);
  return 4 * (ints_of_rows(n) + n.rows * of_row) + 5 * 256;
}

/// The hidden features of all experts are cut in this many blocks at most.
inline int64_t blocks_of_hidden(int64_t hidden) { return std::gcd(hidden, int64_t{64}); }

}  // namespace trainctl
