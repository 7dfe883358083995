// See the header.
#include "engine/train/verification/loss_slope.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <limits>
#include <utility>

namespace trainctl {
namespace {

/// Share of the loss by which it changes in a step: more loses digits to curvature, less to the rounding of f32.
constexpr double kChangeOfLoss = 0.02;
/// Smaller norms, relative to that of all gradients, cannot change the loss that much.
constexpr double kLeastNorm = 1e-3;

double gradient_norm(const std::vector<float>& values) {
  double squares = 0;
  for (const float value : values) squares += double{value} * value;
  return std::sqrt(squares);
}

/// `moved`: empty for all tensors.
LossSlope loss_slope(const TensorValues& gradients, const std::string& moved, double norm, double loss,
                     const LossAt& loss_at) {
  LossSlope slope{.of = moved.empty() ? "all weights" : moved, .expected = norm};
  const auto slope_at = [&](double h) {
    const auto loss_moved_by = [&](double step) {
      return double{loss_at([&](const std::string& name, std::vector<float>& values) {
        const auto found = gradients.find(name);
        if (found == gradients.end() || (!moved.empty() && name != moved)) return;
        for (size_t i = 0; i < values.size(); ++i)
          values[i] = static_cast<float>(values[i] + step / norm * found->second[i]);
      })};
    };
    return (loss_moved_by(h) - loss_moved_by(-h)) / (2 * h);
  };
  const double h = kChangeOfLoss * std::max(std::abs(loss), 1e-3) / norm;
  std::array<double, 3> slopes{};
  for (size_t i = 0; i < slopes.size(); ++i) slopes[i] = slope_at(h / std::pow(1.5, i));
  // The error is a multiple of h^2, which pairs of lengths remove.
  const auto without_curvature = [](double coarse, double fine) { return fine + (fine - coarse) / 1.25; };
  const double first = without_curvature(slopes[0], slopes[1]), second = without_curvature(slopes[1], slopes[2]);
  slope.measured = (first + second) / 2;
  slope.uncertainty = std::abs(first - second) / norm;
  return slope;
}

}  // namespace

double LossSlope::difference() const {
  const double relative = std::abs(measured - expected) / std::max(std::abs(expected), 1e-30);
  return std::isfinite(relative) ? relative : std::numeric_limits<double>::infinity();
}

std::vector<LossSlope> loss_slopes(const TensorValues& gradients, double loss, const LossAt& loss_at, double seconds) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point end =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  std::vector<std::pair<double, std::string>> norms;
  double all = 0;
  for (const auto& [name, values] : gradients) {
    norms.emplace_back(gradient_norm(values), name);
    all += norms.back().first * norms.back().first;
  }
  all = std::sqrt(all);
  std::vector<LossSlope> slopes;
  if (all == 0 || !std::isfinite(all)) return slopes;
  slopes.push_back(loss_slope(gradients, "", all, loss, loss_at));
  std::sort(norms.begin(), norms.end(), std::greater<>());
  for (const auto& [norm, name] : norms) {
    if (norm < kLeastNorm * all || Clock::now() > end) break;
    slopes.push_back(loss_slope(gradients, name, norm, loss, loss_at));
  }
  return slopes;
}

}  // namespace trainctl
