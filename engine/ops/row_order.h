// The order in which the rows of a sequence are stored if ranks share them (parallel.context). With causal attention a
// row costs as much as the rows before it, so a rank takes a piece of the head and a piece of the tail: of 2n pieces
// rank i of n has the pieces i and 2n - 1 - i. Tensors are stored in the order of the ranks, and cut into contiguous
// blocks as always:
//
//   3 ranks     | rank 0 | rank 1 | rank 2 |
//   pieces      |  0  5  |  1  4  |  2  3  |
//
// Ops whose results depend on positions have the attr kRowOrder, the number of ranks.
#pragma once

#include <cstdint>

#include "engine/base/attrs.h"
#include "engine/ops/host_device.h"

namespace trainctl {

inline constexpr const char* kRowOrder = "row_order";

struct RowOrder {
  int64_t piece = 0;  ///< rows of a piece; 0: rows are stored by position
  int64_t last = 0;   ///< index of the last piece

  /// `rows`: of the whole sequence.
  static RowOrder of(const Attrs& attrs, int64_t rows) {
    const int64_t ranks = attrs.integer(kRowOrder, 0);
    return ranks > 1 ? RowOrder{rows / (2 * ranks), 2 * ranks - 1} : RowOrder{};
  }

  /// The position of the row that is stored at `index`.
  TRAINCTL_HOST_DEVICE int64_t position(int64_t index) const {
    if (piece == 0) return index;
    const int64_t at = index / piece, rank = at / 2;
    return (at % 2 == 0 ? rank : last - rank) * piece + index % piece;
  }
};

}  // namespace trainctl
