// An order of 0 … size - 1 that stays local: samples read at one time are close together. It is computed, not stored.
//
//   blocks    0 | 1 | 2 | 3 | 4 | …         neighbors, `block` of them; the last block may be shorter
//   permuted  3 | 0 | 7 | 5 | 2 | …         by a KeyedPermutation
//   windows   3   0   7   5 | 2 …           kWindowBlocks of them, whose samples are permuted among each other
//
// A block can be in any window, but all of its samples are in the same one: within kWindowBlocks * `block` places.
#pragma once

#include <cstdint>
#include <optional>

#include "engine/train/data/permutation.h"

namespace trainctl {

inline constexpr int64_t kWindowBlocks = 16;

class BlockOrder {
 public:
  /// size and block: at least 1, size at most kMostPermuted. Depends only on (seed, pass).
  BlockOrder(int64_t size, int64_t block, uint64_t seed, uint64_t pass);

  /// The sample at a place of the order, 0 <= place < size.
  int64_t at(int64_t place);

 private:
  int64_t start_of(int64_t position) const;
  int64_t position_of(int64_t place) const;
  void enter(int64_t window);

  int64_t size_, block_, blocks_;
  uint64_t window_key_;
  KeyedPermutation order_;  ///< order of the blocks
  int64_t short_at_;        ///< the position of the last block, which may be shorter
  int64_t short_by_;
  // Caches the window of the last call of at().
  int64_t window_ = -1, window_start_ = 0;
  std::optional<KeyedPermutation> within_;
};

}  // namespace trainctl
