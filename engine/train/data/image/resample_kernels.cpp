// The inner loops of resampling. Each row of the result takes two passes: first a weighted sum of input rows,
// vectorized over neighboring elements, into a line of f32 as wide as the input; then weighted sums along that line,
// with one vector per pixel.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "engine/train/data/image/resample.h"

namespace trainctl {
namespace {

template <class T>
T rounded(float value);
template <>
inline float rounded<float>(float value) {
  return value;
}
template <>
inline uint8_t rounded<uint8_t>(float value) {
  return static_cast<uint8_t>(std::min(static_cast<int32_t>(value + 0.5f), 255));  // weights are not negative
}

/// Sets line to the sum of weights[k] * row k over kRows rows, which are `stride` elements apart. With kAdds it adds
/// that sum to line instead.
template <class T, int kRows, bool kAdds>
void sum_rows(const T* __restrict row, int64_t stride, const float* weights, int64_t elements, float* __restrict line) {
  for (int64_t x = 0; x < elements; ++x) {
    float sum = kAdds ? line[x] : 0.0f;
    for (int k = 0; k < kRows; ++k) sum += weights[k] * static_cast<float>(row[k * stride + x]);
    line[x] = sum;
  }
}

/// The same for any number of rows, four at a time.
template <class T>
void sum_rows(const T* row, int64_t stride, const float* weights, int64_t rows, int64_t elements, float* line) {
  const auto some = [&](auto adds, int64_t k) {
    constexpr bool kAdds = decltype(adds)::value;
    const T* from = row + k * stride;
    switch (std::min<int64_t>(rows - k, 4)) {
      case 1:
        sum_rows<T, 1, kAdds>(from, stride, weights + k, elements, line);
        break;
      case 2:
        sum_rows<T, 2, kAdds>(from, stride, weights + k, elements, line);
        break;
      case 3:
        sum_rows<T, 3, kAdds>(from, stride, weights + k, elements, line);
        break;
      default:
        sum_rows<T, 4, kAdds>(from, stride, weights + k, elements, line);
    }
  };
  some(std::false_type{}, 0);
  for (int64_t k = 4; k < rows; k += 4) some(std::true_type{}, k);
}

/// The vector type is explicit because compilers would otherwise vectorize over the taps, which needs shuffles.
using FourFloats [[gnu::vector_size(16)]] = float;

/// The weighted sums along a line of pixels with three channels, four values at a time. `line` and `sums` have room for
/// one value beyond their ends; the next pixel overwrites the fourth value.
void sum_columns_of_three(const float* __restrict line, const Taps& taps, int64_t outputs, float* __restrict sums) {
  const float* weights = taps.weights.data();
  for (int64_t i = 0; i < outputs; ++i, weights += taps.most, sums += 3) {
    const float* from = line + taps.first[static_cast<size_t>(i)] * 3;
    FourFloats sum = {};
    for (int64_t k = 0; k < taps.most; ++k, from += 3) {
      FourFloats pixel;
      std::memcpy(&pixel, from, sizeof(pixel));
      sum += weights[k] * pixel;
    }
    std::memcpy(sums, &sum, sizeof(sum));
  }
}

/// The same for any number of channels.
void sum_columns(const float* line, const Taps& taps, int64_t outputs, int64_t channels, float* out) {
  const float* weights = taps.weights.data();
  for (int64_t i = 0; i < outputs; ++i, weights += taps.most, out += channels) {
    const float* from = line + taps.first[static_cast<size_t>(i)] * channels;
    for (int64_t c = 0; c < channels; ++c) {
      float sum = 0;
      for (int64_t k = 0; k < taps.most; ++k) sum += weights[k] * from[k * channels + c];
      out[c] = sum;
    }
  }
}

template <class T>
void round_all(const float* __restrict sums, int64_t count, T* __restrict out) {
  for (int64_t i = 0; i < count; ++i) out[i] = rounded<T>(sums[i]);
}

}  // namespace

template <class T>
void resample(Resample method, const Pixels<T>& in, const SourceBox& box, const ImageSize& size,
              ResampleScratch& scratch, T* out) {
  const int64_t elements = in.width * in.channels, results = size.width * in.channels;
  scratch.rows.make(method, in.height, box.top, box.height, size.height);
  scratch.columns.make(method, in.width, box.left, box.width, size.width);
  constexpr int64_t kBeyond = 4;
  const auto room = static_cast<size_t>(elements + results + 2 * kBeyond);
  if (scratch.line.size() < room) scratch.line.resize(room);
  float* line = scratch.line.data();
  float* sums = line + elements + kBeyond;
  for (int64_t y = 0; y < size.height; ++y, out += results) {
    const int64_t first = scratch.rows.first[static_cast<size_t>(y)];
    sum_rows(in.data + first * in.stride, in.stride, scratch.rows.weights.data() + y * scratch.rows.most,
             scratch.rows.most, elements, line);
    if (in.channels == 3)
      sum_columns_of_three(line, scratch.columns, size.width, sums);
    else
      sum_columns(line, scratch.columns, size.width, in.channels, sums);
    round_all(sums, results, out);
  }
}

namespace {

/// The two inputs between which an output is interpolated.
struct Pair {
  int64_t low, high;
  float weight;  ///< weight of high
};

Pair pair_at(int64_t in, double origin, double extent, int64_t out, int64_t i) {
  const double centre = origin + (static_cast<double>(i) + 0.5) * extent / static_cast<double>(out) - 0.5;
  const double at = std::clamp(centre, 0.0, static_cast<double>(in - 1));
  const auto low = static_cast<int64_t>(at);
  return {low, std::min(low + 1, in - 1), static_cast<float>(at - static_cast<double>(low))};
}

}  // namespace

template <class T>
void interpolate(const Pixels<T>& in, const SourceBox& box, const ImageSize& size, ResampleScratch& scratch,
                 float* out) {
  Taps& columns = scratch.columns;
  columns.first.resize(static_cast<size_t>(2 * size.width));
  columns.weights.resize(static_cast<size_t>(size.width));
  for (int64_t x = 0; x < size.width; ++x) {
    const Pair pair = pair_at(in.width, box.left, box.width, size.width, x);
    columns.first[static_cast<size_t>(2 * x)] = pair.low * in.channels;
    columns.first[static_cast<size_t>(2 * x + 1)] = pair.high * in.channels;
    columns.weights[static_cast<size_t>(x)] = pair.weight;
  }
  for (int64_t y = 0; y < size.height; ++y) {
    const Pair row = pair_at(in.height, box.top, box.height, size.height, y);
    const T* top = in.data + row.low * in.stride;
    const T* bottom = in.data + row.high * in.stride;
    for (int64_t x = 0; x < size.width; ++x) {
      const int64_t left = columns.first[static_cast<size_t>(2 * x)],
                    right = columns.first[static_cast<size_t>(2 * x + 1)];
      const float weight = columns.weights[static_cast<size_t>(x)];
      for (int64_t c = 0; c < in.channels; ++c) {
        const auto top_left = static_cast<float>(top[left + c]), bottom_left = static_cast<float>(bottom[left + c]);
        const float upper = top_left + weight * (static_cast<float>(top[right + c]) - top_left);
        const float lower = bottom_left + weight * (static_cast<float>(bottom[right + c]) - bottom_left);
        *out++ = upper + row.weight * (lower - upper);
      }
    }
  }
}

template void resample(Resample, const Pixels<uint8_t>&, const SourceBox&, const ImageSize&, ResampleScratch&,
                       uint8_t*);
template void resample(Resample, const Pixels<float>&, const SourceBox&, const ImageSize&, ResampleScratch&, float*);
template void interpolate(const Pixels<uint8_t>&, const SourceBox&, const ImageSize&, ResampleScratch&, float*);
template void interpolate(const Pixels<float>&, const SourceBox&, const ImageSize&, ResampleScratch&, float*);

}  // namespace trainctl
