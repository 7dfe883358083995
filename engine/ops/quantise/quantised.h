// A matrix as a factor of a product in 8 bits: lines of E4M3 numbers, along which the product sums, and their scales.
//
//   words   [lines, padded / 4] i32    four E4M3 numbers per word, the first in the lowest byte; `padded` is the
//                                      length of a line rounded up to 128, with 0 beyond the line
//   scales  [parts, lines] f32         of each 128 numbers of a line, `parts` = padded / 128
//           or, of squares,
//           [lines / 128, parts] f32   of each 128 lines by 128 numbers; `parts` is rounded up to a multiple of 4, as
//                                      cuBLASLt has it, and the columns beyond are 1
//
// A number is its E4M3 number times its scale. Scales are powers of two: the least at which no number of the part is
// beyond 448. So a number is rounded as it would be with any other scale that leaves it above 2^-6: a part that is cut
// over ranks is rounded as the whole, except for what is 2^14 times smaller than its largest number.
#pragma once

#include <bit>
#include <cstdint>

#include "engine/graph/shape.h"
#include "engine/ops/host_device.h"

namespace trainctl {

inline constexpr int64_t kScaledTogether = 128;

inline int64_t padded_line(int64_t length) {
  return (length + kScaledTogether - 1) / kScaledTogether * kScaledTogether;
}

struct QuantisedShapes {
  Shape words, scales;
};
/// The shapes for `lines` lines of `length` numbers.
inline QuantisedShapes quantised_shapes(int64_t lines, int64_t length, bool squares) {
  const int64_t parts = padded_line(length) / kScaledTogether;
  const Shape words{lines, padded_line(length) / 4};
  if (!squares) return {words, {parts, lines}};
  return {words, {padded_line(lines) / kScaledTogether, (parts + 3) / 4 * 4}};
}

/// The scale of numbers of which the largest has these bits as a float without its sign. Of an infinity or a NaN it is
/// that itself.
TRAINCTL_HOST_DEVICE constexpr uint32_t bits_of_scale(uint32_t largest) {
  constexpr uint32_t kLeast = 9, kOfInfinity = 255;  // 2^-118, so that the inverse is no subnormal
  const uint32_t exponent = largest >> 23;
  if (exponent == kOfInfinity) return largest;
  const uint32_t above = (largest & 0x7fffffu) > 0x600000u ? 1 : 0;  // 448 is 1.75 * 2^8
  const uint32_t scale = exponent + above < kLeast + 8 ? kLeast : exponent + above - 8;
  return scale << 23;
}
/// 1 / scale, of a scale that is a power of two.
TRAINCTL_HOST_DEVICE constexpr uint32_t bits_of_inverse(uint32_t scale) { return (254u << 23) - scale; }

}  // namespace trainctl
