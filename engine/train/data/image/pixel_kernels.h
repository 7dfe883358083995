// Loops over the values of rows and planes, which the compiler vectorises for TRAINCTL_KERNEL_ARCH, and with the same
// bits for any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace trainctl {

/// Operation on each value: a and b have one value, or one per channel.
struct PixelOp {
  enum class Kind : uint8_t {
    multiply_add,       ///< x * a + b
    subtract_multiply,  ///< (x - a) * b
    divide,             ///< x / a
  };
  Kind kind = Kind::multiply_add;
  std::vector<float> a, b;
};

/// `count` values of channel `c`.
void apply(const PixelOp& op, int64_t c, int64_t count, float* values);
/// `pixels` of `channels` values each.
void apply_to_pixels(const PixelOp& op, int64_t channels, int64_t pixels, float* values);

/// Converts to f32, or copies.
template <class From, class To>
void convert(const From* from, int64_t count, To* to);
/// A row of pixels, each channel to its own row, `plane` values from one to the next.
template <class From, class To>
void split_channels(const From* row, int64_t pixels, int64_t channels, int64_t plane, To* to);

/// To i32, towards zero.
template <class T>
void to_integers(const T* from, int64_t count, int32_t* to);

/// The pixels of a row from the last to the first, each of `bytes`.
void reverse_pixels(const std::byte* row, int64_t pixels, int64_t bytes, std::byte* to);

}  // namespace trainctl
