// The order in which the rows of a sequence are stored if ranks share them (parallel.context). With causal attention a
// row costs as much as the rows before it, so a rank takes a piece of the head and a piece of the tail: of 2n pieces
// rank i of n has the pieces i and 2n - 1 - i. Tensors are stored in the order of the ranks, and cut into contiguous
// blocks as always:
//
//   3 ranks     | rank 0 | rank 1 | rank 2 |
//   pieces      |  0  5  |  1  4  |  2  3  |
//
// A row of documents costs as much as the rows before it in its document. Smaller pieces divide even long documents
// among all ranks: the sequence is divided into groups of 2n pieces, and of each group a rank has two pieces as above.
//
//   3 ranks, 2 groups     |   rank 0    |   rank 1    |   rank 2    |
//   pieces                |  0  5  6 11 |  1  4  7 10 |  2  3  8  9 |
//
// Ops whose results depend on positions have the attr kRowOrder, the number of ranks, and if they know positions only
// within documents kRowGroups, the number of groups. Loads with kRowGroups put the documents of a sample in an order in
// which all ranks have about the same work (engine/train/data/document_order.h).
#pragma once

#include <cstdint>

#include "engine/base/attrs.h"
#include "engine/ops/host_device.h"

namespace trainctl {

inline constexpr const char* kRowOrder = "row_order";
inline constexpr const char* kRowGroups = "row_groups";

struct RowOrder {
  int64_t piece = 0;   ///< rows of a piece; 0: rows are stored by position
  int64_t ranks = 1;   ///< that share the rows
  int64_t groups = 1;  ///< a rank has two pieces of each group

  /// `rows`: number of rows of the whole sequence.
  static RowOrder of(const Attrs& attrs, int64_t rows) {
    const int64_t ranks = attrs.integer(kRowOrder, 0), groups = attrs.integer(kRowGroups, 1);
    return ranks > 1 ? RowOrder{rows / (2 * ranks * groups), ranks, groups} : RowOrder{};
  }

  /// The position of the row that is stored at `index`.
  TRAINCTL_HOST_DEVICE int64_t position(int64_t index) const {
    if (piece == 0) return index;
    const int64_t at = index / piece, rank = at / (2 * groups), of_rank = at % (2 * groups);
    const int64_t in_group = of_rank % 2 == 0 ? rank : 2 * ranks - 1 - rank;
    return (of_rank / 2 * 2 * ranks + in_group) * piece + index % piece;
  }
  /// The rank that has the row at this position.
  TRAINCTL_HOST_DEVICE int64_t rank_of(int64_t position) const {
    if (piece == 0) return 0;
    const int64_t in_group = position / piece % (2 * ranks);
    return in_group < ranks ? in_group : 2 * ranks - 1 - in_group;
  }
};

}  // namespace trainctl
