// E4M3, 8 bits: sign, 4 bits of exponent, 3 of mantissa. The largest number is 448, the smallest above 0 is 2^-9; there
// is no infinity, and one NaN of each sign. For hosts without such a type.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace trainctl {

inline constexpr float kLargestE4m3 = 448.0f;

inline float from_e4m3(uint8_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x80u) << 24, rest = bits & 0x7fu;
  if (rest < 8) return std::bit_cast<float>(std::bit_cast<uint32_t>(static_cast<float>(rest) * 0x1p-9f) | sign);
  const uint32_t magnitude = rest == 0x7fu ? 0x7fc00000u : (rest << 20) + (120u << 23);
  return std::bit_cast<float>(magnitude | sign);
}

/// Converts f32 to E4M3. Rounds to nearest, ties to even; larger magnitudes than 448 become 448. A NaN stays a NaN.
inline uint8_t to_e4m3(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = bits >> 24 & 0x80u;
  if (std::isnan(value)) return static_cast<uint8_t>(sign | 0x7fu);
  const float size = std::fabs(value);
  if (size >= kLargestE4m3) return static_cast<uint8_t>(sign | 0x7eu);
  // Below 2^-6 the steps are 2^-9: adding 2^14 rounds to them.
  if (size < 0x1p-6f)
    return static_cast<uint8_t>(sign | (std::bit_cast<uint32_t>(size + 0x1p14f) - std::bit_cast<uint32_t>(0x1p14f)));
  const auto magnitude = std::bit_cast<uint32_t>(size);
  const uint32_t rounded = (magnitude + 0x7ffffu + (magnitude >> 20 & 1u)) >> 20;
  return static_cast<uint8_t>(sign | (rounded - (120u << 3)));
}

}  // namespace trainctl
