// Chooses the part of an image that a transform takes. Each random choice draws a fixed count of numbers from the
// generator, so that what it chooses does not change the numbers that later transforms draw.
#pragma once

#include "engine/train/data/image/image.h"
#include "engine/train/data/sample_rng.h"

namespace trainctl {

struct Range {
  double from = 0, to = 0;
};

/// A box of `size` in the middle of the image. It extends beyond an image that is smaller. If the margins cannot be
/// equal, the bottom and right ones are larger.
PixelBox central_box(const ImageSize& image, const ImageSize& size);

/// torchvision's random_resized_crop. A candidate has a share of the area drawn from `scale`, and a ratio of width to
/// height drawn from `ratio`, uniformly in its logarithm. The first of 10 candidates that fits is placed at random. If
/// none fits, the result is the central box with the nearest permitted ratio. Always draws 22 numbers.
PixelBox draw_resized_box(const ImageSize& image, const Range& scale, const Range& ratio, SampleRng& rng);

/// The largest central box with the aspect ratio of `size`, with its sides multiplied by `fraction`. A fraction of
/// 0.875 selects what remains after torchvision's Resize(256) and CenterCrop(224).
PixelBox central_resized_box(const ImageSize& image, const ImageSize& size, double fraction);

/// torchvision's random_erasing. Draws candidates like draw_resized_box, but they must be smaller than the image. If
/// none of 10 fits, the height of the result is 0. Always draws 22 numbers.
PixelBox draw_erased_box(const ImageSize& image, const Range& scale, const Range& ratio, SampleRng& rng);

/// A box of `size` at a random place in the image extended by `padding` on each side. Where the box is larger than
/// that, it is centered. Always draws two numbers: top, then left.
PixelBox draw_box(const ImageSize& image, const ImageSize& size, int64_t padding, SampleRng& rng);

}  // namespace trainctl
