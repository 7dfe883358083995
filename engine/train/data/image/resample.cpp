// Resizes images. Computes, for each output, the inputs of which it is a weighted mean, and their weights.
#include "engine/train/data/image/resample.h"

#include <algorithm>
#include <cmath>

namespace trainctl {
namespace {

/// The inputs [first, end) that an output depends on, and the center and width of the filter, in inputs.
struct Support {
  int64_t first = 0, end = 0;
  double centre = 0, width = 1;
};

/// The support of a triangle filter around the center, as Pillow defines it.
Support triangle_support(int64_t in, double origin, double scale, int64_t i) {
  const double width = std::max(scale, 1.0);
  const double centre = origin + (static_cast<double>(i) + 0.5) * scale;
  return {std::max<int64_t>(static_cast<int64_t>(std::floor(centre - width + 0.5)), 0),
          std::min<int64_t>(static_cast<int64_t>(std::floor(centre + width + 0.5)), in), centre, width};
}

Support area_support(int64_t in, double origin, double scale, int64_t i) {
  const double from = origin + static_cast<double>(i) * scale;
  return {std::max<int64_t>(static_cast<int64_t>(std::floor(from)), 0),
          std::min<int64_t>(static_cast<int64_t>(std::ceil(from + scale)), in), from + scale / 2, scale};
}

double weight_of(Resample method, const Support& at, int64_t input) {
  const auto x = static_cast<double>(input);
  if (method == Resample::antialias) return std::max(0.0, 1.0 - std::abs((x + 0.5 - at.centre) / at.width));
  const double from = at.centre - at.width / 2, to = at.centre + at.width / 2;
  return std::max(0.0, std::min(x + 1, to) - std::max(x, from));
}

}  // namespace

void Taps::make(Resample method, int64_t in, double origin, double extent, int64_t out) {
  const double scale = extent / static_cast<double>(out);
  // A triangle of this width covers up to one input more than its width; an area also covers two inputs in part.
  most = std::min(
      in, static_cast<int64_t>(std::ceil(method == Resample::antialias ? 2 * std::max(scale, 1.0) : scale)) + 1);
  first.resize(static_cast<size_t>(out));
  weights.assign(static_cast<size_t>(out * most), 0.0f);
  exact.resize(static_cast<size_t>(most));
  for (int64_t i = 0; i < out; ++i) {
    const Support at =
        method == Resample::antialias ? triangle_support(in, origin, scale, i) : area_support(in, origin, scale, i);
    // At the right edge the inputs begin earlier, so that each output has `most` inputs.
    const int64_t start = std::clamp<int64_t>(at.first, 0, in - most);
    double sum = 0;
    for (int64_t k = 0; k < most; ++k) {
      const int64_t input = start + k;
      const bool counts = input >= at.first && input < at.end;
      sum += exact[static_cast<size_t>(k)] = counts ? weight_of(method, at, input) : 0.0;
    }
    first[static_cast<size_t>(i)] = start;
    for (int64_t k = 0; k < most; ++k)
      weights[static_cast<size_t>(i * most + k)] = static_cast<float>(exact[static_cast<size_t>(k)] / sum);
  }
}

int64_t ResampleScratch::memory_bytes() const {
  const auto of = [](const Taps& taps) {
    return taps.first.capacity() * sizeof(int64_t) + taps.weights.capacity() * sizeof(float) +
           taps.exact.capacity() * sizeof(double);
  };
  return static_cast<int64_t>(of(rows) + of(columns) + line.capacity() * sizeof(float));
}

}  // namespace trainctl
