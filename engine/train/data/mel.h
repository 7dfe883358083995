// Log-mel features of a sound:
//
//   frame t    samples [t * hop, t * hop + window), times a periodic Hann window, zeros up to the next power of two
//   power      |FFT|^2
//   band b     sum of the power, weighted by a triangle between the centers of the bands b - 1 and b + 1
//   result     ln(max(band, 1e-10))
//
// The centers are evenly spaced on the mel scale 2595 log10(1 + f / 700), from 0 to half of the sample rate.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace trainctl {

struct MelOptions {
  int64_t sample_rate = 16'000, bins = 80, window = 400, hop = 160;
};

class MelFilter {
 public:
  explicit MelFilter(const MelOptions& options);

  /// Number of frames that lie completely within this many samples.
  int64_t frames(int64_t samples) const {
    return samples < options_.window ? 0 : 1 + (samples - options_.window) / options_.hop;
  }
  /// Writes [frames(samples), bins].
  void apply(std::span<const float> samples, std::span<float> out) const;

 private:
  struct Band {
    size_t first = 0;  ///< frequency
    std::vector<float> weights;
  };

  MelOptions options_;
  size_t fft_size_;
  std::vector<float> hann_;
  std::vector<std::pair<float, float>> roots_;  ///< e^(-2 pi i k / fft_size), for half of the circle
  std::vector<Band> bands_;
};

}  // namespace trainctl
