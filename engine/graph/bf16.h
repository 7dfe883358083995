// bf16 as the upper half of a float, for hosts without such a type.
#pragma once

#include <bit>
#include <cstdint>

namespace trainctl {

inline float from_bf16(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

/// Converts f32 to bf16. Rounds to nearest, ties to even. Branch-free, so that loops over it are vectorised; a NaN
/// stays a NaN.
inline uint16_t to_bf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
  const uint32_t nan = bits >> 16 | 0x40u;
  return static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}

}  // namespace trainctl
