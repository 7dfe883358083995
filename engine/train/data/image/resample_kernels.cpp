// The sums of resampling: rows first, which vectors of neighbours fill, into a line of f32 as wide as the input; then
// along that line, a vector a pixel.
#include <algorithm>
#include <cmath>

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

/// line = sum of weights[k] * row k, or (adds) on top of it; `rows` rows of `stride`.
template <class T, int kRows, bool kAdds>
void sum_rows(const T* __restrict row, int64_t stride, const float* weights, int64_t elements, float* __restrict line) {
  for (int64_t x = 0; x < elements; ++x) {
    float sum = kAdds ? line[x] : 0.0f;
    for (int k = 0; k < kRows; ++k) sum += weights[k] * static_cast<float>(row[k * stride + x]);
    line[x] = sum;
  }
}

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

/// Along a line of pixels of kChannels, of which kLanes are loaded: the line has room beyond its end.
template <class T, int kChannels, int kLanes>
void sum_columns(const float* __restrict line, const Taps& taps, int64_t outputs, T* __restrict out) {
  const float* weights = taps.weights.data();
  for (int64_t i = 0; i < outputs; ++i, weights += taps.most, out += kChannels) {
    const float* from = line + taps.first[static_cast<size_t>(i)] * kChannels;
    float sum[kLanes] = {};
    for (int64_t k = 0; k < taps.most; ++k, from += kChannels)
      for (int lane = 0; lane < kLanes; ++lane) sum[lane] += weights[k] * from[lane];
    for (int c = 0; c < kChannels; ++c) out[c] = rounded<T>(sum[c]);
  }
}

template <class T>
void sum_columns(const float* line, const Taps& taps, int64_t outputs, int64_t channels, T* out) {
  const float* weights = taps.weights.data();
  for (int64_t i = 0; i < outputs; ++i, weights += taps.most, out += channels) {
    const float* from = line + taps.first[static_cast<size_t>(i)] * channels;
    for (int64_t c = 0; c < channels; ++c) {
      float sum = 0;
      for (int64_t k = 0; k < taps.most; ++k) sum += weights[k] * from[k * channels + c];
      out[c] = rounded<T>(sum);
    }
  }
}

}  // namespace

template <class T>
void resample(Resample method, const Pixels<T>& in, const SourceBox& box, const ImageSize& size,
              ResampleScratch& scratch, T* out) {
  const int64_t elements = in.width * in.channels;
  scratch.rows.make(method, in.height, box.top, box.height, size.height);
  scratch.columns.make(method, in.width, box.left, box.width, size.width);
  constexpr size_t kBeyond = 4;
  if (scratch.line.size() < static_cast<size_t>(elements) + kBeyond)
    scratch.line.resize(static_cast<size_t>(elements) + kBeyond);
  float* line = scratch.line.data();
  for (int64_t y = 0; y < size.height; ++y, out += size.width * in.channels) {
    const int64_t first = scratch.rows.first[static_cast<size_t>(y)];
    sum_rows(in.data + first * in.stride, in.stride, scratch.rows.weights.data() + y * scratch.rows.most,
             scratch.rows.most, elements, line);
    switch (in.channels) {
      case 1:
        sum_columns<T, 1, 1>(line, scratch.columns, size.width, out);
        break;
      case 3:
        sum_columns<T, 3, 4>(line, scratch.columns, size.width, out);
        break;
      default:
        sum_columns<T>(line, scratch.columns, size.width, in.channels, out);
    }
  }
}

namespace {

/// The two inputs between which an output is interpolated.
struct Pair {
  int64_t low, high;
  float weight;  ///< of high
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
