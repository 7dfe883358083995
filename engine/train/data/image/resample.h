// Resizes images.
//
//   bilinear    interpolates between 2 x 2 pixels even if the image shrinks: OpenCV's INTER_LINEAR. The result is f32
//   antialias   bilinear over 1/scale times as many pixels if the image shrinks: as Pillow's BILINEAR and torchvision's
//               antialias
//   area        the mean of the area that a pixel covers: OpenCV's INTER_AREA for an image that shrinks
//
// The centers of pixels are at half-integers, and sums end at the edges of the image. antialias and area round u8
// images to u8. The order of each sum is fixed, so its bits are the same on every machine and thread.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/train/data/image/image.h"

namespace trainctl {

enum class Resample : uint8_t { bilinear, antialias, area };

/// The part of an image that is resized: all of it or, if it was decoded at a smaller scale, the exact part that was
/// requested.
struct SourceBox {
  double top = 0, left = 0, height = 0, width = 0;
};

/// The weights of each output: weight[i * most + k] is the weight that output i gives to input first[i] + k. Every
/// output has `most` inputs; some of the weights are 0.
struct Taps {
  int64_t most = 0;
  std::vector<int64_t> first;
  std::vector<float> weights;
  std::vector<double> exact;  ///< exact weights of one output

  /// Computes the weights that map the range [origin, origin + extent) of `in` inputs to `out` outputs.
  void make(Resample method, int64_t in, double origin, double extent, int64_t out);
};

/// Memory for resizing; each worker has its own.
struct ResampleScratch {
  Taps rows, columns;
  std::vector<float> line;
  int64_t memory_bytes() const;
};

/// Pixels [height, width, channels], with `stride` elements from one row to the next.
template <class T>
struct Pixels {
  const T* data;
  int64_t height, width, channels, stride;
};

/// Resizes by antialias or area. `out`: [size.height, size.width, channels]. T: uint8_t or float.
template <class T>
void resample(Resample method, const Pixels<T>& in, const SourceBox& box, const ImageSize& size,
              ResampleScratch& scratch, T* out);

/// Resizes by bilinear interpolation, without rounding.
template <class T>
void interpolate(const Pixels<T>& in, const SourceBox& box, const ImageSize& size, ResampleScratch& scratch,
                 float* out);

}  // namespace trainctl
