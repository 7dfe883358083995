// Which part of an image a transform takes.
#pragma once

#include "engine/train/data/image/image.h"
#include "engine/train/data/sample_rng.h"

namespace trainctl {

struct Range {
  double from = 0, to = 0;
};

/// The middle; outside of an image that is smaller. An odd rest is larger below and to the right.
PixelBox central_box(const ImageSize& image, const ImageSize& size);

/// torchvision's random_resized_crop: a box of `scale` of the area and `ratio` of width to height (uniform in its
/// logarithm), the first of 10 that fits, anywhere; else the central one with the nearest ratio. Always 22 numbers.
PixelBox draw_resized_box(const ImageSize& image, const Range& scale, const Range& ratio, SampleRng& rng);

/// The largest central box with the ratio of `size`, times `fraction`: with 0.875 what torchvision's Resize(256) and
/// CenterCrop(224) see.
PixelBox central_resized_box(const ImageSize& image, const ImageSize& size, double fraction);

/// torchvision's random_erasing: as draw_resized_box, but smaller than the image, and no box if none of 10 fits: its
/// height is 0. Always 22 numbers.
PixelBox draw_erased_box(const ImageSize& image, const Range& scale, const Range& ratio, SampleRng& rng);

/// A box of `size` anywhere in the image with `padding` around it; in the middle where it is larger than that. Two
/// numbers: top, then left.
PixelBox draw_box(const ImageSize& image, const ImageSize& size, int64_t padding, SampleRng& rng);

}  // namespace trainctl
