// The learning-rate range test (Smith 2017, arXiv:1506.01186): one short run whose rate grows by the same factor after
// each step.
#include "cli/sweep/lr_range.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "engine/base/measures.h"

namespace trainctl {
namespace {

constexpr double kSmoothing = 0.9;
/// A smooth loss above the lowest one by this share of the whole fall has diverged.
constexpr double kDiverged = 2;
constexpr size_t kRows = 12, kFirstSlope = 5;

/// The slope of the smooth loss around a point, over the logarithm of the rate.
double slope_at(const std::vector<LrPoint>& points, size_t at) {
  const size_t first = at >= 2 ? at - 2 : 0, last = std::min(at + 2, points.size() - 1);
  return (points[last].smooth - points[first].smooth) / std::log(points[last].rate / points[first].rate);
}

}  // namespace

LrRange parse_lr_range(const std::string& text, int64_t steps) {
  LrRange range{.steps = steps};
  const size_t dots = text.find("..");
  char* end = nullptr;
  bool is_range = dots != std::string::npos;
  if (is_range) {
    range.low = std::strtod(text.c_str(), &end);
    is_range = end == text.c_str() + dots;
    range.high = std::strtod(text.c_str() + dots + 2, &end);
    is_range = is_range && *end == '\0' && end != text.c_str() + dots + 2;
  }
  if (!is_range || !(range.low > 0) || !(range.high > range.low) || !std::isfinite(range.high))
    throw SpecError({}, "--lr-range", "'" + text + "' is not a range of learning rates", "e.g. --lr-range 1e-6..10");
  return range;
}

TrialFields lr_range_fields(const LrRange& range) {
  const double factor = std::pow(range.high / range.low, 1.0 / static_cast<double>(range.steps - 1));
  return {fmt::format("optimizer.learning_rate={{type: step, base: {:.9g}, step_size: 1, gamma: {:.9g}}}", range.low,
                      factor),
          fmt::format("train.steps={}", range.steps),
          "train.epochs=null",
          "train.log_every=1",
          "train.on_nan=warn",
          "train.checkpoint=none",
          "train.stop_when=null",
          "validation=null"};
}

/// Smooths the losses by an exponential average, and ends the curve where the loss diverges.
LrCurve lr_curve(const std::vector<double>& rates, const std::vector<double>& losses) {
  LrCurve curve;
  double mean = 0, weight = 0, lowest = INFINITY;
  for (size_t i = 0; i < std::min(rates.size(), losses.size()); ++i) {
    if (!std::isfinite(losses[i])) {
      curve.diverges = true;
      break;
    }
    mean = kSmoothing * mean + (1 - kSmoothing) * losses[i];
    weight = kSmoothing * weight + (1 - kSmoothing);
    const double smooth = mean / weight;
    const double first = curve.points.empty() ? smooth : curve.points.front().smooth;
    if (smooth > lowest + kDiverged * std::max(first - lowest, std::abs(lowest) * 0.1)) {
      curve.diverges = true;
      break;
    }
    lowest = std::min(lowest, smooth);
    curve.points.push_back({rates[i], losses[i], smooth});
  }
  if (curve.points.size() <= kFirstSlope) return curve;
  size_t steepest = kFirstSlope, best = 0;
  for (size_t i = 0; i < curve.points.size(); ++i) {
    if (curve.points[i].smooth < curve.points[best].smooth) best = i;
    if (i >= kFirstSlope && slope_at(curve.points, i) < slope_at(curve.points, steepest)) steepest = i;
  }
  curve.at_lowest = curve.points[best].rate;
  if (slope_at(curve.points, steepest) < 0) curve.steepest = curve.points[steepest].rate;
  return curve;
}

LrCurve read_lr_curve(const std::string& metrics_file) {
  std::vector<double> rates, losses;
  std::ifstream file(metrics_file);
  for (std::string line; std::getline(file, line);) {
    const auto json = nlohmann::json::parse(line, nullptr, false);
    if (!json.is_object() || !json.contains("learning_rate") || !json["learning_rate"].is_number()) continue;
    const bool is_finite = json.contains("loss") && json["loss"].is_number();
    rates.push_back(json["learning_rate"]);
    losses.push_back(is_finite ? json["loss"].get<double>() : NAN);
  }
  return lr_curve(rates, losses);
}

std::string lr_curve_text(const LrCurve& curve, size_t width) {
  if (curve.points.size() < 2) return "the loss is not finite at the first rates: start the range at a lower rate\n";
  double least = INFINITY, most = -INFINITY;
  for (const LrPoint& point : curve.points) {
    least = std::min(least, point.smooth);
    most = std::max(most, point.smooth);
  }
  const size_t label = 10, columns = std::max<size_t>(20, std::min<size_t>(width, 100) - label - 2);
  std::vector<std::string> rows(kRows, std::string(columns, ' '));
  const double first = std::log(curve.points.front().rate), last = std::log(curve.points.back().rate);
  const auto column_of = [&](double rate) {
    return static_cast<size_t>(
        std::lround((std::log(rate) - first) / (last - first) * static_cast<double>(columns - 1)));
  };
  for (const LrPoint& point : curve.points) {
    const double height = most > least ? (point.smooth - least) / (most - least) : 0;
    rows[kRows - 1 - static_cast<size_t>(std::lround(height * (kRows - 1)))][column_of(point.rate)] = '*';
  }
  std::string text = "smoothed loss by learning rate\n";
  for (size_t row = 0; row < kRows; ++row) {
    const bool is_labeled = row == 0 || row + 1 == kRows;
    text += fmt::format("{:>{}} |{}", is_labeled ? format_loss(row == 0 ? most : least) : "", label, rows[row]);
    text.erase(text.find_last_not_of(' ') + 1);
    text += "\n";
  }
  text += std::string(label + 1, ' ') + "+" + std::string(columns, '-') + "\n";
  std::string axis(label + 2 + columns, ' ');
  for (int power = -12; power <= 4; ++power) {
    const double rate = std::pow(10.0, power);
    if (rate < curve.points.front().rate * 0.999 || rate > curve.points.back().rate * 1.001) continue;
    const std::string name = fmt::format("1e{}", power);
    const size_t at = label + 2 + column_of(rate);
    if (at + name.size() <= axis.size()) axis.replace(at, name.size(), name);
  }
  axis.erase(axis.find_last_not_of(' ') + 1);
  text += axis + "\n\n";
  if (curve.steepest) text += fmt::format("the loss falls fastest at {:.2g}\n", *curve.steepest);
  if (curve.at_lowest)
    text += fmt::format("it is lowest at {:.2g}{}\n", *curve.at_lowest, curve.diverges ? ", and rises after it" : "");
  if (!curve.steepest) text += "it does not fall within this range\n";
  if (!curve.diverges) text += "it does not rise at the end: the range could end at a higher rate\n";
  return text;
}

}  // namespace trainctl
