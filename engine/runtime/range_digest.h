// The digest of a range of memory: the sum over its words of 4 bytes, each mixed with its index. A sum does not depend
// on its order, so a device computes it in many parts; a change of one word always changes it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/base/mix_bits.h"
#include "engine/ops/host_device.h"

namespace trainctl {

/// Equal only for equal pairs (for indices below 2^32): a finalizer of 64-bit hashes, which is invertible.
TRAINCTL_HOST_DEVICE inline uint64_t mixed_word(uint32_t word, int64_t index) {
  return mix_bits((static_cast<uint64_t>(index) << 32 | word) + 0x9e3779b97f4a7c15U);
}

/// Word `index` of a range of `bytes` bytes, of which the last one may be cut off.
TRAINCTL_HOST_DEVICE inline uint32_t word_of_bytes(const std::byte* range, int64_t bytes, int64_t index) {
  uint32_t word = 0;
  for (int64_t i = 0; i < 4 && 4 * index + i < bytes; ++i) word |= static_cast<uint32_t>(range[4 * index + i]) << 8 * i;
  return word;
}

TRAINCTL_HOST_DEVICE inline int64_t words_of_bytes(int64_t bytes) { return (bytes + 3) / 4; }

inline uint64_t range_digest(const std::byte* range, int64_t bytes) {
  uint64_t sum = 0;
  for (int64_t i = 0; i < words_of_bytes(bytes); ++i) sum += mixed_word(word_of_bytes(range, bytes, i), i);
  return sum;
}

}  // namespace trainctl
