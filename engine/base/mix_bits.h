// A function that spreads the bits of a number, for hashes and digests.
#pragma once

#include <cstdint>

namespace trainctl {

/// The finalizer of splitmix64. It is invertible, so different numbers stay different.
constexpr uint64_t mix_bits(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31);
}

}  // namespace trainctl
