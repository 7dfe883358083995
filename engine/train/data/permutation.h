// A permutation of 0 … n - 1 that is computed, not stored: place i of the order is at(i). It replaces a shuffled list
// for large sets.
//
// A Feistel network over the bits of n - 1, whose round function is Philox. A result of n or more is permuted again
// (cycle walking: Black and Rogaway, 2002), which happens less than once on average if n is at least 128.
#pragma once

#include <cstdint>

namespace trainctl {

inline constexpr uint64_t kMostPermuted = uint64_t{1} << 62;

class KeyedPermutation {
 public:
  /// `n` is from 1 to kMostPermuted.
  KeyedPermutation(uint64_t n, uint64_t key);

  uint64_t size() const { return n_; }
  /// The value at place i < n.
  uint64_t at(uint64_t i) const;
  /// The inverse: place_of(at(i)) == i.
  uint64_t place_of(uint64_t value) const;

 private:
  uint64_t forward(uint64_t value) const;
  uint64_t backward(uint64_t value) const;

  uint64_t n_, key_;
  int low_bits_, high_bits_;  ///< sizes of the two halves in bits; low_bits_ is the same or one more
};

}  // namespace trainctl
