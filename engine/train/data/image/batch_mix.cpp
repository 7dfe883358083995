// Mixup and CutMix: each row of a batch is mixed with the next one (the last with the first), and its label with that
// row's label.
#include "engine/train/data/image/batch_mix.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace trainctl {
namespace {

/// Returns P(Beta(a, a) <= x) for x <= 1/2, by the series x^a (1-x)^a / (a B(a, a)) * (1 + sum of products of (2a + i)
/// / (a + 1 + i) * x). All factors are below 1, so the series converges as fast as a geometric one.
double lower_half(double a, double x) {
  if (x <= 0) return 0;
  double term = 1, sum = 1;
  for (int i = 0; i < 2000 && term > 1e-17 * sum; ++i) {
    term *= (2 * a + i) / (a + 1 + i) * x;
    sum += term;
  }
  const double log_beta = 2 * std::lgamma(a) - std::lgamma(2 * a);
  return std::exp(a * (std::log(x) + std::log1p(-x)) - log_beta) / a * sum;
}

}  // namespace

double beta_quantile(double alpha, double p) {
  if (p > 0.5) return 1 - beta_quantile(alpha, 1 - p);  // The distribution is symmetric.
  double low = 0, high = 0.5;
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    (lower_half(alpha, middle) < p ? low : high) = middle;
  }
  return high;
}

BatchMix draw_mixup(double alpha, SampleRng& rng) { return {beta_quantile(alpha, rng.uniform()), {}}; }

BatchMix draw_cutmix(double alpha, const ImageSize& image, SampleRng& rng) {
  const double side = std::sqrt(1 - beta_quantile(alpha, rng.uniform()));  // The side of the box, as a fraction of the
                                                                           // image's side.
  const auto along = [&](int64_t pixels) {
    const double centre = rng.uniform() * static_cast<double>(pixels), reach = side * static_cast<double>(pixels) / 2;
    const auto from = std::clamp<int64_t>(std::lround(centre - reach), 0, pixels);
    return std::pair(from, std::clamp<int64_t>(std::lround(centre + reach), from, pixels) - from);
  };
  const auto [top, height] = along(image.height);
  const auto [left, width] = along(image.width);
  const double cut = static_cast<double>(height * width) / static_cast<double>(image.height * image.width);
  return {1 - cut, {top, left, height, width}};
}

void mix(double share, const float* own, const float* other, int64_t elements, float* out) {
  const auto kept = static_cast<float>(share), added = static_cast<float>(1 - share);
  for (int64_t i = 0; i < elements; ++i) out[i] = kept * own[i] + added * other[i];
}

void paste_box(const PixelBox& box, const float* other, const ImageSize& image, int64_t channels, bool channels_first,
               float* own) {
  const int64_t planes = channels_first ? channels : 1, per_pixel = channels_first ? 1 : channels;
  for (int64_t plane = 0; plane < planes; ++plane) {
    for (int64_t y = box.top; y < box.top + box.height; ++y) {
      const int64_t first = ((plane * image.height + y) * image.width + box.left) * per_pixel;
      std::copy_n(other + first, box.width * per_pixel, own + first);
    }
  }
}

}  // namespace trainctl
