// Loops over the values of rows and planes. The compiler vectorizes them for the instruction sets in
// TRAINCTL_KERNEL_ARCH; the bits are the same for each of these.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace trainctl {

/// Operation on each value. Its operands a and b have one value, or one value per channel.
struct PixelOp {
  enum class Kind : uint8_t {
    multiply_add,       ///< x * a + b
    subtract_multiply,  ///< (x - a) * b
    divide,             ///< x / a
  };
  Kind kind = Kind::multiply_add;
  std::vector<float> a, b;
};

/// Applies the operation to `count` values of channel `c`.
void apply(const PixelOp& op, int64_t c, int64_t count, float* values);
/// Applies the operation to `pixels` pixels of `channels` values each.
void apply_to_pixels(const PixelOp& op, int64_t channels, int64_t pixels, float* values);

/// Converts values to f32, or copies them.
template <class From, class To>
void convert(const From* from, int64_t count, To* to);
/// Splits a row of pixels into channels: each channel goes to its own row, and these rows are `plane` values apart.
template <class From, class To>
void split_channels(const From* row, int64_t pixels, int64_t channels, int64_t plane, To* to);

/// Converts values to i32, rounded towards zero.
template <class T>
void to_integers(const T* from, int64_t count, int32_t* to);

/// Writes the pixels of a row from the last to the first; each has `bytes` bytes.
void reverse_pixels(const std::byte* row, int64_t pixels, int64_t bytes, std::byte* to);

}  // namespace trainctl
