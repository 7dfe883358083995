// Changes brightness, contrast, saturation and hue by random factors in a random order: torchvision's ColorJitter.
//
//   brightness   f * x
//   contrast     f * x + (1 - f) * m       m is the mean of the image's luma
//   saturation   f * x + (1 - f) * luma
//   hue          rotated by f of a full circle, in HSV
//
// Each result is rounded to u8 and kept within 0 to 255.
#pragma once

#include <array>
#include <cstdint>

#include "engine/train/data/image/image.h"
#include "engine/train/data/sample_rng.h"

namespace trainctl {

/// The order and the factors of the changes. A factor of 1 (for the hue: 0) does not change the image.
struct ColorChange {
  enum Kind : uint8_t { brightness, contrast, saturation, hue };
  std::array<Kind, 4> order = {brightness, contrast, saturation, hue};
  std::array<float, 4> factors = {1, 1, 1, 0};  ///< by Kind
};

/// Draws factors in [max(0, 1 - amount), 1 + amount] and a hue in [-amount, amount]; `amounts` are in the order of
/// Kind. Always draws eight numbers.
ColorChange draw_color_change(const std::array<double, 4>& amounts, SampleRng& rng);

/// Changes u8 pixels of red, green and blue in place.
void change_colors(const ColorChange& change, int64_t pixels, uint8_t* rgb);

}  // namespace trainctl
