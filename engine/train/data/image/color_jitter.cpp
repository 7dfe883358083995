// Changes brightness, contrast, saturation and hue by random factors in a random order: torchvision's ColorJitter.
#include "engine/train/data/image/color_jitter.h"

#include <algorithm>
#include <utility>

namespace trainctl {

ColorChange draw_color_change(const std::array<double, 4>& amounts, SampleRng& rng) {
  ColorChange change;
  for (size_t i = 3; i > 0; --i)
    std::swap(change.order[i], change.order[static_cast<size_t>(rng.integer(static_cast<int64_t>(i) + 1))]);
  for (size_t i = 0; i < 4; ++i) {
    const bool is_hue = i == ColorChange::hue;
    const double least = is_hue ? -amounts[i] : std::max(0.0, 1.0 - amounts[i]);
    change.factors[i] = static_cast<float>(rng.uniform(least, is_hue ? amounts[i] : 1.0 + amounts[i]));
  }
  rng.next();  // Draws an eighth number, so that each sample takes two whole blocks of four words from Philox.
  return change;
}

}  // namespace trainctl
