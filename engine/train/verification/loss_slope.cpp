// Compares the gradients of a job with differences of its loss along a direction in the space of the weights.
#include "engine/train/verification/loss_slope.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <utility>

namespace trainctl {
namespace {

/// Share of the loss by which it changes in the longest step along all weights: more crosses more corners of the loss,
/// less loses digits to the rounding of f32.
constexpr double kChangeOfLoss = 0.01;
/// Relative error of a loss, which is a sum in f32.
constexpr double kRoundingOfLoss = 2e-7;
/// Tensors with smaller norms, relative to that of all gradients, cannot change the loss enough.
constexpr double kLeastNorm = 1e-2;
constexpr double kShorter = 10;
/// A difference is a wrong gradient only if shorter steps change it by less than a tenth (is_uncertain has a half).
constexpr double kLeastSettled = 5;

double gradient_norm(const std::vector<float>& values) {
  double squares = 0;
  for (const float value : values) squares += double{value} * value;
  return std::sqrt(squares);
}

/// `moved`: empty for all tensors. `longest`: the length of the longest step.
LossSlope loss_slope(const TensorValues& gradients, const std::string& moved, double norm, double longest, double loss,
                     const LossAt& loss_at) {
  LossSlope slope{.of = moved.empty() ? "all weights" : moved, .expected = norm};
  const auto loss_moved_by = [&](double step) {
    return double{loss_at([&](const std::string& name, std::vector<float>& values) {
      const auto found = gradients.find(name);
      if (found == gradients.end() || (!moved.empty() && name != moved)) return;
      for (size_t i = 0; i < values.size(); ++i)
        values[i] = static_cast<float>(values[i] + step / norm * found->second[i]);
    })};
  };
  struct Sides {
    double slope;  ///< between both sides
    double bend;   ///< by how much the slopes of the two sides differ
  };
  const auto sides_at = [&](double length) {
    const double ahead = loss_moved_by(length), behind = loss_moved_by(-length);
    return Sides{(ahead - behind) / (2 * length), (ahead + behind - 2 * loss) / length};
  };
  const Sides coarse = sides_at(longest), middle = sides_at(longest / 2), fine = sides_at(longest / 4);
  const double rounding = kRoundingOfLoss * std::abs(loss) / (longest / 4);
  // If the loss is smooth, the error is a multiple of the squared length: a step of half the length has a quarter of
  // it.
  const bool is_smooth = std::abs((coarse.slope - middle.slope) - 4 * (middle.slope - fine.slope)) <
                         std::abs(coarse.slope - middle.slope) / 2 + 4 * rounding;
  const double from_coarse = middle.slope + (middle.slope - coarse.slope) / 3;
  const double from_middle = fine.slope + (fine.slope - middle.slope) / 3;
  const auto [least, most] = std::minmax({coarse.slope, middle.slope, fine.slope});
  // A curve bends in proportion to the length; the rest is a corner at the weights themselves.
  const double corner = std::max(std::abs(2 * fine.bend - middle.bend) - 8 * rounding, 0.0);
  slope.measured = is_smooth ? from_middle : middle.slope;
  slope.rounding = rounding / norm;
  slope.uncertainty =
      std::max(is_smooth ? std::abs(from_middle - from_coarse) : most - least, corner) / norm + slope.rounding;
  return slope;
}

}  // namespace

double LossSlope::difference() const {
  const double relative = std::abs(measured - expected) / std::max(std::abs(expected), 1e-30);
  return std::isfinite(relative) ? relative : std::numeric_limits<double>::infinity();
}

std::vector<LossSlope> loss_slopes(const TensorValues& gradients, double loss, const LossAt& loss_at, double tolerance,
                                   double seconds) {
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
  const double longest = kChangeOfLoss * std::max(std::abs(loss), 1e-3) / all;
  const auto add = [&](const std::string& moved, double norm) {
    const double length = longest * std::sqrt(all / norm);
    LossSlope slope = loss_slope(gradients, moved, norm, length, loss, loss_at);
    if (slope.difference() > tolerance) {
      // A wrong gradient stays wrong in shorter steps; the error of a corner of the loss does not.
      const LossSlope shorter = loss_slope(gradients, moved, norm, length / kShorter, loss, loss_at);
      if (shorter.difference() <= tolerance)
        slope = shorter;
      else {
        const double change = std::abs(slope.measured - shorter.measured) / norm;
        slope.uncertainty = std::max(slope.uncertainty, kLeastSettled * (change - 2 * shorter.rounding));
      }
    }
    slopes.push_back(std::move(slope));
  };
  add("", all);
  std::sort(norms.begin(), norms.end(), std::greater<>());
  for (const auto& [norm, name] : norms) {
    if (norm < kLeastNorm * all || Clock::now() > end) break;
    add(name, norm);
  }
  return slopes;
}

}  // namespace trainctl
