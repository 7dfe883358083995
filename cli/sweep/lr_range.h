// The learning-rate range test (Smith 2017, arXiv:1506.01186): one short run whose rate grows by the same factor after
// each step. The loss falls fastest at a rate that trains well, and rises where the rate is too high.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/sweep/swept_field.h"

namespace trainctl {

struct LrRange {
  double low = 1e-6, high = 10;
  int64_t steps = 100;
};

/// "1e-6..10". Throws SpecError (--lr-range) for any other text.
LrRange parse_lr_range(const std::string& text, int64_t steps);

/// The overrides of the run: the rate as a schedule, and no validation, checkpoint or early stop.
TrialFields lr_range_fields(const LrRange& range);

struct LrPoint {
  double rate = 0, loss = 0, smooth = 0;  ///< smooth: exponential mean of the losses so far
};

struct LrCurve {
  std::vector<LrPoint> points;      ///< up to the first loss that is not finite or far above the lowest one
  std::optional<double> steepest;   ///< rate at which the loss falls fastest; none: it does not fall
  std::optional<double> at_lowest;  ///< rate at which it is lowest
  bool diverges = false;            ///< the curve ends because the loss rises
};

LrCurve lr_curve(const std::vector<double>& rates, const std::vector<double>& losses);
/// The curve of a run's metrics.jsonl.
LrCurve read_lr_curve(const std::string& metrics_file);

/// A drawing of the smooth loss over the logarithm of the rate, `width` columns wide, and the rates to choose.
std::string lr_curve_text(const LrCurve& curve, size_t width);

}  // namespace trainctl
