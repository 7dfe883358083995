// E5M2, 8 bits: sign, 5 bits of exponent, 2 of mantissa, which are the upper half of a number in half precision. The
// largest number is 57344, the smallest above 0 is 2^-16; there are infinities and NaNs. For hosts without such a type.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace trainctl {

inline constexpr float kLargestE5m2 = 57344.0f;

inline float from_e5m2(uint8_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x80u) << 24, rest = bits & 0x7fu;
  if (rest < 4) return std::bit_cast<float>(std::bit_cast<uint32_t>(static_cast<float>(rest) * 0x1p-16f) | sign);
  const uint32_t magnitude = rest < 0x7c ? (rest << 21) + (112u << 23) : rest == 0x7c ? 0x7f800000u : 0x7fc00000u;
  return std::bit_cast<float>(magnitude | sign);
}

/// Converts f32 to E5M2. Rounds to nearest, ties to even; larger magnitudes than 57344 become 57344. A NaN stays a NaN.
inline uint8_t to_e5m2(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = bits >> 24 & 0x80u;
  if (std::isnan(value)) return static_cast<uint8_t>(sign | 0x7fu);
  const float size = std::fabs(value);
  if (size >= kLargestE5m2) return static_cast<uint8_t>(sign | 0x7bu);
  // Below 2^-14 the steps are 2^-16: adding 2^7 rounds to them.
  if (size < 0x1p-14f)
    return static_cast<uint8_t>(sign | (std::bit_cast<uint32_t>(size + 0x1p7f) - std::bit_cast<uint32_t>(0x1p7f)));
  const auto magnitude = std::bit_cast<uint32_t>(size);
  const uint32_t rounded = (magnitude + 0xfffffu + (magnitude >> 21 & 1u)) >> 21;
  return static_cast<uint8_t>(sign | (rounded - (112u << 2)));
}

}  // namespace trainctl
