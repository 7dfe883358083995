// See the header.
#include "engine/train/verification/loss_slope.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace trainctl {
namespace {

/// Share of the loss by which it changes in a step: more loses digits to curvature, less to the rounding of f32.
constexpr double kChangeOfLoss = 0.02;

}  // namespace

double SlopeComparison::difference() const {
  const double relative = std::abs(measured - expected) / std::max(std::abs(expected), 1e-30);
  return std::isfinite(relative) ? relative : std::numeric_limits<double>::infinity();
}

SlopeComparison compare_slope(const TensorValues& gradients, double loss, const LossAt& loss_at) {
  double squares = 0;
  for (const auto& [name, values] : gradients)
    for (const float value : values) squares += double{value} * value;
  const double norm = std::sqrt(squares);
  SlopeComparison slope;
  slope.expected = norm;
  if (norm == 0 || !std::isfinite(norm)) return slope;
  const auto slope_at = [&](double h) {
    const auto moved = [&](double step) {
      return double{loss_at([&](const std::string& name, std::vector<float>& values) {
        const auto found = gradients.find(name);
        if (found == gradients.end()) return;
        for (size_t i = 0; i < values.size(); ++i)
          values[i] = static_cast<float>(values[i] + step / norm * found->second[i]);
      })};
    };
    return (moved(h) - moved(-h)) / (2 * h);
  };
  const double h = kChangeOfLoss * std::max(std::abs(loss), 1e-3) / norm;
  const double coarse = slope_at(h), fine = slope_at(h / 2);
  // The error of both is a multiple of h^2, which this removes.
  slope.measured = fine + (fine - coarse) / 3;
  slope.rounding = std::abs(fine - coarse) / norm;
  return slope;
}

}  // namespace trainctl
