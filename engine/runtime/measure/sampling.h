// Samples of work that takes nanoseconds or minutes: each sample is as many runs in a row as the clock needs.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "engine/runtime/measure/kernel_timer.h"

namespace trainctl {

/// `seconds_of(n)` runs the work n times in a row and returns the seconds. The samples are in seconds per run.
template <class SecondsOf>
std::vector<double> take_samples(const SecondsOf& seconds_of, const SampleOptions& options) {
  constexpr double kMostRuns = 1e6, kWarmSeconds = 0.02;
  seconds_of(1);  // caches, pages, threads
  double runs = 1, seconds = seconds_of(1);
  while (seconds < options.sample_seconds / 2 && runs < kMostRuns) {
    const double wanted = seconds > 0 ? options.sample_seconds / seconds * runs : runs * 10;
    runs = std::min(kMostRuns, std::clamp(std::ceil(wanted), runs + 1, runs * 10));
    seconds = seconds_of(static_cast<int64_t>(runs));
  }
  for (double warm = 0; warm < kWarmSeconds; warm += std::max(seconds, 1e-6)) {  // clocks rise with the load
    seconds = seconds_of(static_cast<int64_t>(runs));
  }
  std::vector<double> samples;
  for (int i = 0; i < options.samples; ++i) samples.push_back(seconds_of(static_cast<int64_t>(runs)) / runs);
  return samples;
}

/// The median, and the 10th and 90th percentiles, of samples in any order.
struct Spread {
  double median = 0, low = 0, high = 0;
};
Spread spread_of(std::vector<double> samples);

}  // namespace trainctl
