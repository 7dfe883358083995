// The layout of a matrix that is quantised to FP8 (E4M3) with one scale per 128 numbers, as a factor of a product. A
// "line" runs along the dim over which the product sums.
//
//   words   [lines, padded / 4] i32    four E4M3 numbers per word, the first in the lowest byte; `padded` is the
//                                      length of a line rounded up to 128, filled with 0
//   scales  [parts, lines] f32         one per 128 numbers of a line; `parts` = padded / 128
//           or, with `squares`,
//           [lines / 128, parts] f32   one per square of 128 lines by 128 numbers; `parts` is rounded up to a
//                                      multiple of 4, as cuBLASLt requires, and the extra columns are 1
//
// A number is its E4M3 code times its scale. A scale is the smallest power of two for which no number of its group
// exceeds 448. Any power of two that leaves a number above 2^-6 rounds it equally. So a shard of a matrix is rounded
// like the whole matrix, except for numbers that are 2^14 times smaller than the largest of their group.
//
// With the recipes `tensor` and `delayed` (tensor_scale.h) the scales are a single number [1], the words may be E5M2
// numbers, and the scale is that of the whole tensor on all ranks.
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
/// The shapes for `lines` lines of `length` numbers. `tensor`: with one scale.
inline QuantisedShapes quantised_shapes(int64_t lines, int64_t length, bool squares, bool tensor = false) {
  const int64_t parts = padded_line(length) / kScaledTogether;
  const Shape words{lines, padded_line(length) / 4};
  if (tensor) return {words, {1}};
  if (!squares) return {words, {parts, lines}};
  return {words, {padded_line(lines) / kScaledTogether, (parts + 3) / 4 * 4}};
}

/// The scale of a group of numbers, as the bits of a float. `largest`: the bits of their largest magnitude. For an
/// infinity or NaN the scale is that number.
TRAINCTL_HOST_DEVICE constexpr uint32_t bits_of_scale(uint32_t largest) {
  constexpr uint32_t kLeast = 9, kOfInfinity = 255;  // 2^-118, so that the inverse is not subnormal
  const uint32_t exponent = largest >> 23;
  if (exponent == kOfInfinity) return largest;
  const uint32_t above = (largest & 0x7fffffu) > 0x600000u ? 1 : 0;  // 448 is 1.75 * 2^8
  const uint32_t scale = exponent + above < kLeast + 8 ? kLeast : exponent + above - 8;
  return scale << 23;
}
/// The bits of 1 / scale, for a scale that is a power of two.
TRAINCTL_HOST_DEVICE constexpr uint32_t bits_of_inverse(uint32_t scale) { return (254u << 23) - scale; }

}  // namespace trainctl
