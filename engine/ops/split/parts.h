// The ops split and concat along a dim that is cut over ranks: which elements each rank has in the whole tensor, and in
// its parts. A whole of 12 elements in 3 parts of 4, over 2 ranks:
//
//   element               0  1  2  3 | 4  5  6  7 | 8  9 10 11
//   part                  0          | 1          | 2
//   rank in the whole     0  0  0  0   0  0  1  1   1  1  1  1
//   rank in the part      0  0  1  1   0  0  1  1   0  0  1  1
//
// For a split, rank 0 sends elements 2 and 3, and rank 1 sends 8 and 9: only what the other rank needs.
#pragma once

#include <algorithm>
#include <cstddef>
#include <map>
#include <numeric>
#include <utility>
#include <vector>

#include "engine/base/attrs.h"
#include "engine/ops/kernel.h"

namespace trainctl {

/// Consecutive elements of one part that one rank has in the whole, and one (perhaps the same) in the part.
struct Piece {
  size_t part = 0;
  int64_t in_whole = 0, in_part = 0;  ///< index of the first element along the dim
  int64_t count = 0;
  int64_t whole_rank = 0, part_rank = 0;
};

/// Sizes of whole tensors, not of a rank's parts of them.
struct SplitParts {
  int64_t whole = 0;
  Ints sizes, offsets;

  /// `offsets`: where each part begins; empty: where the one before ends.
  static SplitParts of(int64_t whole, Ints sizes, Ints offsets) {
    if (offsets.empty()) {
      offsets.resize(sizes.size());
      std::exclusive_scan(sizes.begin(), sizes.end(), offsets.begin(), int64_t{0});
    }
    return {whole, std::move(sizes), std::move(offsets)};
  }

  /// Returns the pieces in the order of the parts.
  std::vector<Piece> pieces(int64_t ways) const {
    std::vector<Piece> all;
    const int64_t of_whole = whole / ways;
    for (size_t p = 0; p < sizes.size(); ++p) {
      const int64_t of_part = sizes[p] / ways;
      for (int64_t at = 0; at < sizes[p];) {
        Piece piece{p, offsets[p] + at, at, 0, (offsets[p] + at) / of_whole, at / of_part};
        const int64_t end_in_whole = (piece.whole_rank + 1) * of_whole - offsets[p];
        piece.count = std::min(end_in_whole, (piece.part_rank + 1) * of_part) - at;
        at += piece.count;
        all.push_back(piece);
      }
    }
    return all;
  }

  /// The most that one rank sends to another, at least 1: the size of the blocks that are exchanged.
  int64_t block(int64_t ways) const {
    std::map<std::pair<int64_t, int64_t>, int64_t> sent;
    int64_t most = 1;
    for (const Piece& piece : pieces(ways))
      if (piece.whole_rank != piece.part_rank)
        most = std::max(most, sent[{piece.whole_rank, piece.part_rank}] += piece.count);
    return most;
  }
};

/// Copies StripCopies::rows rows of bytes.
struct StripCopy {
  const std::byte* from;
  std::byte* to;
  int64_t from_row, to_row;  ///< bytes from one row to the next
  int64_t row;               ///< bytes of one row
};

/// The copies that a kernel of this family makes.
struct StripCopies {
  int64_t rows = 1;
  std::vector<StripCopy> strips;
  bool has_gaps = false;  ///< the output has gaps, which become zeros
};

enum class PartsKernel : uint8_t {
  split,        ///< (x[, blocks]) -> parts
  concat,       ///< (parts..[, blocks]) -> whole
  split_pack,   ///< (x) -> blocks [ranks, ..]
  concat_pack,  ///< (parts..) -> blocks
};

/// The copies between the operands of one rank. `blocks`: the data of other ranks is read from the last input,
/// [ranks, ..].
StripCopies strip_copies(const KernelCall& call, PartsKernel kernel, bool blocks = false);

}  // namespace trainctl
