// Chooses the part of an image that a transform takes.
#include "engine/train/data/image/crop_choice.h"

#include <algorithm>
#include <cmath>

namespace trainctl {
namespace {

constexpr int kTries = 10;

/// Half of `rest`, rounded down even if it is negative.
int64_t half(int64_t rest) { return (rest - (rest < 0 ? 1 : 0)) / 2; }

/// Draws kTries random sizes and returns the first that is at most `most`, or a height of 0 if none is. Always draws 2
/// * kTries numbers.
ImageSize draw_size(const ImageSize& image, const ImageSize& most, const Range& scale, const Range& ratio,
                    SampleRng& rng) {
  const double area = static_cast<double>(image.height) * static_cast<double>(image.width);
  ImageSize found;
  for (int i = 0; i < kTries; ++i) {
    const double target = area * rng.uniform(scale.from, scale.to);
    const double aspect = std::exp(rng.uniform(std::log(ratio.from), std::log(ratio.to)));
    const auto width = static_cast<int64_t>(std::nearbyint(std::sqrt(target * aspect)));
    const auto height = static_cast<int64_t>(std::nearbyint(std::sqrt(target / aspect)));
    const bool fits = width > 0 && height > 0 && width <= most.width && height <= most.height;
    if (fits && found.height == 0) found = {height, width};
  }
  return found;
}

}  // namespace

PixelBox central_box(const ImageSize& image, const ImageSize& size) {
  return {half(image.height - size.height), half(image.width - size.width), size.height, size.width};
}

PixelBox draw_resized_box(const ImageSize& image, const Range& scale, const Range& ratio, SampleRng& rng) {
  ImageSize size = draw_size(image, image, scale, ratio, rng);
  if (size.height > 0) return draw_box(image, size, 0, rng);
  const double own = static_cast<double>(image.width) / static_cast<double>(image.height);
  size = image;
  if (own < ratio.from) size.height = std::lround(static_cast<double>(image.width) / ratio.from);
  if (own > ratio.to) size.width = std::lround(static_cast<double>(image.height) * ratio.to);
  draw_box(image, size, 0, rng);  // Draws as many numbers as a box that is placed at random.
  size = {std::clamp<int64_t>(size.height, 1, image.height), std::clamp<int64_t>(size.width, 1, image.width)};
  return central_box(image, size);
}

PixelBox central_resized_box(const ImageSize& image, const ImageSize& size, double fraction) {
  const auto height = static_cast<double>(image.height), width = static_cast<double>(image.width);
  const double aspect = static_cast<double>(size.width) / static_cast<double>(size.height);
  const double box_height = fraction * std::min(height, width / aspect);
  const double box_width = fraction * std::min(width, height * aspect);
  return central_box(image, {std::clamp<int64_t>(std::lround(box_height), 1, image.height),
                             std::clamp<int64_t>(std::lround(box_width), 1, image.width)});
}

PixelBox draw_erased_box(const ImageSize& image, const Range& scale, const Range& ratio, SampleRng& rng) {
  const ImageSize size = draw_size(image, {image.height - 1, image.width - 1}, scale, ratio, rng);
  return draw_box(image, size, 0, rng);
}

PixelBox draw_box(const ImageSize& image, const ImageSize& size, int64_t padding, SampleRng& rng) {
  const auto place = [&](int64_t rest) {
    const uint32_t number = rng.next();
    if (rest < 0) return half(rest) - padding;
    return static_cast<int64_t>((uint64_t{number} * static_cast<uint64_t>(rest + 1)) >> 32) - padding;
  };
  const int64_t top = place(image.height + 2 * padding - size.height);
  const int64_t left = place(image.width + 2 * padding - size.width);
  return {top, left, size.height, size.width};
}

}  // namespace trainctl
