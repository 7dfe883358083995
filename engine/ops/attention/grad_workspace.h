// The workspace of cuDNN's attention, as a plan shows it and as the kernel asks for it. A deterministic gradient needs
// 2 bytes for each score, rounded up to tiles: it is computed in slices of samples, or of heads, that stay below a
// limit.
#pragma once

#include <algorithm>

#include "engine/ops/attention/attention_shape.h"

namespace trainctl {

inline constexpr int64_t kForwardWorkspace = int64_t{4} << 20;
inline constexpr int64_t kMostGradWorkspace = int64_t{256} << 20;

/// As many samples, and kv heads of each, in one call of the library. 0: none fits.
struct AttentionSlice {
  int64_t b = 0, g = 0;
};

/// At most, with room for what the library adds to scores, dq in f32 and sums of rows.
inline int64_t grad_workspace(const AttentionSize& n, const AttentionSlice& slice) {
  const auto tiles = [](int64_t rows) { return (rows + 127) / 128 * 128; };
  const int64_t head = 2 * tiles(n.t) * tiles(n.s) + 4 * tiles(n.t) * (n.d + 2);
  return slice.b * slice.g * n.r * head * 9 / 8 + (int64_t{1} << 20);
}

/// `all_heads`: one call may take more than one kv head.
inline AttentionSlice grad_slice(const AttentionSize& n, bool all_heads) {
  const auto fits = [&](const AttentionSlice& slice) { return grad_workspace(n, slice) <= kMostGradWorkspace; };
  const auto divisor_below = [](int64_t whole, int64_t part) {
    do --part;
    while (part > 0 && whole % part != 0);
    return part;
  };
  AttentionSlice slice{n.b, all_heads ? n.g : 1};
  while (slice.b > 0 && !fits(slice)) slice.b = divisor_below(n.b, slice.b);
  if (slice.b > 0) return slice;
  slice.b = 1;
  while (slice.g > 0 && !fits(slice)) slice.g = divisor_below(n.g, slice.g);
  return slice.g > 0 ? slice : AttentionSlice{};
}

}  // namespace trainctl
