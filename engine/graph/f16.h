// IEEE 754 half precision, for hosts without such a type.
#pragma once

#include <bit>
#include <cstdint>

namespace trainctl {

/// Converts half precision to f32. Has no branches, so that loops over it are vectorised.
inline float from_f16(uint16_t bits) {
  constexpr uint32_t kExponent = 0x7c00u << 13;
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t whole = static_cast<uint32_t>(bits & 0x7fffu) << 13, exponent = whole & kExponent;
  const uint32_t normal = whole + ((127u - 15u) << 23);
  const uint32_t not_finite = normal + ((128u - 16u) << 23);
  const float subnormal = std::bit_cast<float>(normal + (1u << 23)) - std::bit_cast<float>(113u << 23);
  const uint32_t magnitude = exponent == kExponent ? not_finite
                             : exponent == 0       ? std::bit_cast<uint32_t>(subnormal)
                                                   : normal;
  return std::bit_cast<float>(magnitude | sign);
}

/// Converts f32 to half precision. Rounds to nearest, ties to even; values from 65520 on become infinity. Branch-free;
/// a NaN stays a NaN.
inline uint16_t to_f16(float value) {
  constexpr uint32_t kInfinity = 255u << 23, kAbove = (127u + 16u) << 23, kLeastNormal = 113u << 23;
  constexpr uint32_t kSubnormalAdd = ((127u - 15u) + (23u - 10u) + 1u) << 23;
  const auto all = std::bit_cast<uint32_t>(value);
  const uint32_t sign = all & 0x80000000u, bits = all ^ sign;
  // The sum has the exponent of the least subnormal in its last place, so the addition rounds.
  const uint32_t subnormal =
      std::bit_cast<uint32_t>(std::bit_cast<float>(bits) + std::bit_cast<float>(kSubnormalAdd)) - kSubnormalAdd;
  const uint32_t normal = (bits - ((127u - 15u) << 23) + 0xfffu + (bits >> 13 & 1u)) >> 13;
  const uint32_t not_finite = bits > kInfinity ? 0x7e00u : 0x7c00u;
  const uint32_t half = bits >= kAbove ? not_finite : bits < kLeastNormal ? subnormal : normal;
  return static_cast<uint16_t>(half | sign >> 16);
}

}  // namespace trainctl
