// Images at another size.
//
//   bilinear    two pixels on each side, also where the image shrinks: OpenCV's INTER_LINEAR. The result is f32
//   antialias   bilinear, over 1/scale times as many pixels where it shrinks: Pillow's BILINEAR, torchvision's
//   antialias area        the mean of the area that a pixel covers: OpenCV's INTER_AREA where it shrinks
//
// Pixel centres are at halves, and the edges end the sums. antialias and area of u8 are rounded to u8. Sums have one
// order, so they have the same bits on any machine and thread.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/train/data/image/image.h"

namespace trainctl {

enum class Resample : uint8_t { bilinear, antialias, area };

/// The part of an image that is resized: all of it, or, if it was decoded at a smaller scale, the exact part that was
/// meant.
struct SourceBox {
  double top = 0, left = 0, height = 0, width = 0;
};

/// The weights of output i: weight[i * most + k] of input first[i] + k. `most` inputs each; some weights are 0.
struct Taps {
  int64_t most = 0;
  std::vector<int64_t> first;
  std::vector<float> weights;
  std::vector<double> exact;  ///< exact weights of one output

  /// `in` inputs, of which the part [origin, origin + extent) becomes `out` outputs.
  void make(Resample method, int64_t in, double origin, double extent, int64_t out);
};

/// A worker's own.
struct ResampleScratch {
  Taps rows, columns;
  std::vector<float> line;
  int64_t memory_bytes() const;
};

/// [height, width, channels], of which `stride` elements are from a row to the next one.
template <class T>
struct Pixels {
  const T* data;
  int64_t height, width, channels, stride;
};

/// antialias and area. `out`: [size.height, size.width, channels]. T: uint8_t or float.
template <class T>
void resample(Resample method, const Pixels<T>& in, const SourceBox& box, const ImageSize& size,
              ResampleScratch& scratch, T* out);

/// bilinear, unrounded.
template <class T>
void interpolate(const Pixels<T>& in, const SourceBox& box, const ImageSize& size, ResampleScratch& scratch,
                 float* out);

}  // namespace trainctl
