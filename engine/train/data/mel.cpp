// Log-mel features of a sound.
#include "engine/train/data/mel.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numbers>

#include "engine/base/error.h"

namespace trainctl {
namespace {

double to_mel(double frequency) { return 2595 * std::log10(1 + frequency / 700); }
double from_mel(double mel) { return 700 * (std::pow(10.0, mel / 2595) - 1); }

/// An FFT in place, whose size is a power of two.
void transform_fft(std::vector<float>& real, std::vector<float>& imaginary,
                   const std::vector<std::pair<float, float>>& roots) {
  const size_t size = real.size();
  for (size_t i = 1, j = 0; i < size; ++i) {  // the order of reversed bits
    size_t bit = size >> 1;
    for (; (j & bit) != 0; bit >>= 1) j ^= bit;
    j ^= bit;
    if (i >= j) continue;
    std::swap(real[i], real[j]);
    std::swap(imaginary[i], imaginary[j]);
  }
  for (size_t half = 1; half < size; half *= 2)
    for (size_t start = 0; start < size; start += 2 * half)
      for (size_t k = 0; k < half; ++k) {
        const auto [c, s] = roots[k * (size / (2 * half))];
        const size_t a = start + k, b = a + half;
        const float re = real[b] * c - imaginary[b] * s, im = real[b] * s + imaginary[b] * c;
        real[b] = real[a] - re;
        imaginary[b] = imaginary[a] - im;
        real[a] += re;
        imaginary[a] += im;
      }
}

}  // namespace

MelFilter::MelFilter(const MelOptions& options)
    : options_(options), fft_size_(std::bit_ceil(static_cast<size_t>(options.window))) {
  const auto window = static_cast<size_t>(options.window), bins = static_cast<size_t>(options.bins);
  constexpr double kTurn = 2 * std::numbers::pi;
  for (size_t i = 0; i < window; ++i)
    hann_.push_back(
        static_cast<float>(0.5 - 0.5 * std::cos(kTurn * static_cast<double>(i) / static_cast<double>(window))));
  for (size_t k = 0; k < std::max<size_t>(fft_size_ / 2, 1); ++k) {
    const double angle = -kTurn * static_cast<double>(k) / static_cast<double>(fft_size_);
    roots_.emplace_back(static_cast<float>(std::cos(angle)), static_cast<float>(std::sin(angle)));
  }
  std::vector<double> centers;  // with the ends of the first and the last band
  const double top = static_cast<double>(options.sample_rate) / 2;
  for (size_t b = 0; b < bins + 2; ++b)
    centers.push_back(from_mel(to_mel(top) * static_cast<double>(b) / static_cast<double>(bins + 1)));
  for (size_t b = 0; b < bins; ++b) {
    Band band;
    for (size_t f = 0; f <= fft_size_ / 2; ++f) {
      const double frequency = static_cast<double>(f) * 2 * top / static_cast<double>(fft_size_);
      const double rise = (frequency - centers[b]) / (centers[b + 1] - centers[b]);
      const double fall = (centers[b + 2] - frequency) / (centers[b + 2] - centers[b + 1]);
      const double weight = std::min(rise, fall);
      if (weight <= 0) continue;
      if (band.weights.empty()) band.first = f;
      band.weights.push_back(static_cast<float>(weight));
    }
    bands_.push_back(std::move(band));
  }
}

void MelFilter::apply(std::span<const float> samples, std::span<float> out) const {
  const int64_t count = frames(static_cast<int64_t>(samples.size()));
  check(static_cast<int64_t>(out.size()) == count * options_.bins, "the result has a row per frame");
  std::vector<float> real, imaginary;
  for (int64_t frame = 0; frame < count; ++frame) {
    real.assign(fft_size_, 0);
    imaginary.assign(fft_size_, 0);
    for (size_t i = 0; i < hann_.size(); ++i)
      real[i] = samples[static_cast<size_t>(frame * options_.hop) + i] * hann_[i];
    transform_fft(real, imaginary, roots_);
    for (size_t b = 0; b < bands_.size(); ++b) {
      float sum = 0;
      for (size_t i = 0; i < bands_[b].weights.size(); ++i) {
        const size_t f = bands_[b].first + i;
        sum += bands_[b].weights[i] * (real[f] * real[f] + imaginary[f] * imaginary[f]);
      }
      constexpr float kLeast = 1e-10f;
      out[static_cast<size_t>(frame) * bands_.size() + b] = std::log(std::max(sum, kLeast));
    }
  }
}

}  // namespace trainctl
