// A permutation of 0 … n - 1 that is computed, not stored: place i of the order is at(i).
#include "engine/train/data/permutation.h"

#include <algorithm>
#include <bit>

#include "engine/base/error.h"
#include "engine/ops/random.h"

namespace trainctl {
namespace {

constexpr int kRounds =
    6;  ///< rounds of the Feistel network: four suffice for halves of many bits, small halves need more
constexpr int kLeastBits = 8;  ///< halves of one or two bits do not mix well, so a small set has longer cycle walks

/// The first `bits` bits of a word that depends on key, round and half.
uint64_t round_word(uint64_t key, int round, uint64_t half, int bits) {
  const Philox4 word = philox(key, half, static_cast<uint64_t>(round));
  return (uint64_t{word.v[1]} << 32 | word.v[0]) & ((uint64_t{1} << bits) - 1);
}

}  // namespace

KeyedPermutation::KeyedPermutation(uint64_t n, uint64_t key) : n_(n), key_(key) {
  check(n >= 1 && n <= kMostPermuted, "a permutation has 1 to 2^62 places");
  const int bits = std::max(kLeastBits, static_cast<int>(std::bit_width(n - 1)));
  high_bits_ = bits / 2;
  low_bits_ = bits - high_bits_;
}

// A round of the Feistel network changes one half by a function of the other, so it can be inverted. The two halves are
// changed in turn, so they may differ in size.
uint64_t KeyedPermutation::forward(uint64_t value) const {
  uint64_t high = value >> low_bits_, low = value & ((uint64_t{1} << low_bits_) - 1);
  for (int round = 0; round < kRounds; round += 2) {
    high ^= round_word(key_, round, low, high_bits_);
    low ^= round_word(key_, round + 1, high, low_bits_);
  }
  return high << low_bits_ | low;
}

uint64_t KeyedPermutation::backward(uint64_t value) const {
  uint64_t high = value >> low_bits_, low = value & ((uint64_t{1} << low_bits_) - 1);
  for (int round = kRounds - 2; round >= 0; round -= 2) {
    low ^= round_word(key_, round + 1, high, low_bits_);
    high ^= round_word(key_, round, low, high_bits_);
  }
  return high << low_bits_ | low;
}

uint64_t KeyedPermutation::at(uint64_t i) const {
  check(i < n_, "a place of a permutation is below its size");
  do i = forward(i);
  while (i >= n_);
  return i;
}

uint64_t KeyedPermutation::place_of(uint64_t value) const {
  check(value < n_, "a value of a permutation is below its size");
  do value = backward(value);
  while (value >= n_);
  return value;
}

}  // namespace trainctl
