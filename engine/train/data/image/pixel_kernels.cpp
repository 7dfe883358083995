// Loops over the values of rows and planes. The compiler vectorizes them for the instruction sets in
// TRAINCTL_KERNEL_ARCH; the bits are the same for each of these.
#include "engine/train/data/image/pixel_kernels.h"

#include <cstring>

namespace trainctl {
namespace {

float of_channel(const std::vector<float>& values, int64_t c) {
  return values.size() == 1 ? values[0] : values[static_cast<size_t>(c)];
}

void apply(PixelOp::Kind kind, float a, float b, int64_t count, float* values) {
  switch (kind) {
    case PixelOp::Kind::multiply_add:
      for (int64_t i = 0; i < count; ++i) values[i] = values[i] * a + b;
      break;
    case PixelOp::Kind::subtract_multiply:
      for (int64_t i = 0; i < count; ++i) values[i] = (values[i] - a) * b;
      break;
    case PixelOp::Kind::divide:
      for (int64_t i = 0; i < count; ++i) values[i] = values[i] / a;
      break;
  }
}

template <int kBytes>
void reverse(const std::byte* row, int64_t pixels, std::byte* to) {
  const std::byte* from = row + pixels * kBytes;
  for (int64_t x = 0; x < pixels; ++x, to += kBytes) {
    from -= kBytes;
    std::memcpy(to, from, kBytes);
  }
}

/// Copies pixels of three bytes, four bytes at a time: the next pixel overwrites the fourth byte.
template <>
void reverse<3>(const std::byte* row, int64_t pixels, std::byte* to) {
  const std::byte* from = row + (pixels - 1) * 3;
  if (pixels > 0) std::memcpy(to, from, 3);  // The last pixel is copied alone, so that no byte after the row is read.
  for (int64_t x = 1; x + 1 < pixels; ++x) std::memcpy(to += 3, from -= 3, 4);
  if (pixels > 1) std::memcpy(to + 3, from - 3, 3);
}

}  // namespace

void apply(const PixelOp& op, int64_t c, int64_t count, float* values) {
  apply(op.kind, of_channel(op.a, c), op.b.empty() ? 0.0f : of_channel(op.b, c), count, values);
}

void apply_to_pixels(const PixelOp& op, int64_t channels, int64_t pixels, float* values) {
  if (op.a.size() <= 1 && op.b.size() <= 1) return apply(op, 0, pixels * channels, values);
  for (int64_t c = 0; c < channels; ++c) {
    const float a = of_channel(op.a, c), b = op.b.empty() ? 0.0f : of_channel(op.b, c);
    for (int64_t i = 0; i < pixels; ++i) apply(op.kind, a, b, 1, values + i * channels + c);
  }
}

template <class From, class To>
void convert(const From* __restrict from, int64_t count, To* __restrict to) {
  for (int64_t i = 0; i < count; ++i) to[i] = static_cast<To>(from[i]);
}

template <class From, class To>
void split_channels(const From* __restrict row, int64_t pixels, int64_t channels, int64_t plane, To* __restrict to) {
  if (channels == 3) {
    To* __restrict red = to;
    To* __restrict green = to + plane;
    To* __restrict blue = to + 2 * plane;
    for (int64_t x = 0; x < pixels; ++x) {
      red[x] = static_cast<To>(row[3 * x]);
      green[x] = static_cast<To>(row[3 * x + 1]);
      blue[x] = static_cast<To>(row[3 * x + 2]);
    }
    return;
  }
  for (int64_t c = 0; c < channels; ++c)
    for (int64_t x = 0; x < pixels; ++x) to[c * plane + x] = static_cast<To>(row[x * channels + c]);
}

template <class T>
void to_integers(const T* from, int64_t count, int32_t* to) {
  for (int64_t i = 0; i < count; ++i) to[i] = static_cast<int32_t>(from[i]);
}

void reverse_pixels(const std::byte* row, int64_t pixels, int64_t bytes, std::byte* to) {
  switch (bytes) {
    case 1:
      return reverse<1>(row, pixels, to);
    case 3:
      return reverse<3>(row, pixels, to);
    case 4:
      return reverse<4>(row, pixels, to);
    case 12:
      return reverse<12>(row, pixels, to);
    default:
      for (int64_t x = 0; x < pixels; ++x, to += bytes)
        std::memcpy(to, row + (pixels - 1 - x) * bytes, static_cast<size_t>(bytes));
  }
}

template void convert(const uint8_t*, int64_t, uint8_t*);
template void convert(const uint8_t*, int64_t, float*);
template void convert(const uint8_t*, int64_t, int32_t*);
template void convert(const int32_t*, int64_t, int32_t*);
template void convert(const int32_t*, int64_t, float*);
template void convert(const float*, int64_t, float*);
template void split_channels(const uint8_t*, int64_t, int64_t, int64_t, uint8_t*);
template void split_channels(const uint8_t*, int64_t, int64_t, int64_t, float*);
template void split_channels(const int32_t*, int64_t, int64_t, int64_t, int32_t*);
template void split_channels(const int32_t*, int64_t, int64_t, int64_t, float*);
template void split_channels(const float*, int64_t, int64_t, int64_t, float*);
template void to_integers(const uint8_t*, int64_t, int32_t*);
template void to_integers(const float*, int64_t, int32_t*);

}  // namespace trainctl
