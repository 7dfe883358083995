// Chooses trials from the results of earlier ones: the tree-structured Parzen estimator (Bergstra et al. 2011).
#include "cli/sweep/tpe.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <random>
#include <string>

namespace trainctl {
namespace {

constexpr double kBestShare = 0.25;
constexpr int kCandidates = 24;

/// The field's value in a trial.
std::string value_in(const TrialFields& trial, const SweptField& field) {
  const std::string prefix = field.name + "=";
  for (const std::string& one : trial)
    if (one.starts_with(prefix)) return one.substr(prefix.size());
  return "";
}

double to_unit(const SweptField& field, double value) {
  if (field.high <= field.low) return 0.5;
  const double at = field.is_logarithmic ? std::log(value / field.low) / std::log(field.high / field.low)
                                         : (value - field.low) / (field.high - field.low);
  return std::clamp(at, 0.0, 1.0);
}

std::string of_unit(const SweptField& field, double at) {
  const double value = field.is_logarithmic ? field.low * std::pow(field.high / field.low, at)
                                            : field.low + at * (field.high - field.low);
  return field.is_integral ? fmt::format("{:.12g}", std::clamp(std::round(value), field.low, field.high))
                           : fmt::format("{:.6g}", value);
}

/// A mixture of a uniform density on [0, 1] and one normal density per point.
class UnitDensity {
 public:
  explicit UnitDensity(std::vector<double> points) : points_(std::move(points)) {
    std::sort(points_.begin(), points_.end());
    const double least = 1.0 / static_cast<double>(std::min<size_t>(100, points_.size() + 1));
    for (size_t i = 0; i < points_.size(); ++i) {
      const double below = i == 0 ? points_[i] : points_[i] - points_[i - 1];
      const double above = i + 1 == points_.size() ? 1 - points_[i] : points_[i + 1] - points_[i];
      widths_.push_back(std::clamp(std::max(below, above), least, 1.0));
    }
  }

  double draw(std::mt19937_64& random) const {
    const auto part = static_cast<size_t>(draw_unit(random) * static_cast<double>(points_.size() + 1));
    if (part >= points_.size()) return draw_unit(random);
    const double radius = std::sqrt(-2 * std::log(1 - draw_unit(random)));
    return std::clamp(points_[part] + widths_[part] * radius * std::cos(2 * M_PI * draw_unit(random)), 0.0, 1.0);
  }

  double at(double x) const {
    double sum = 1;
    for (size_t i = 0; i < points_.size(); ++i) {
      const double z = (x - points_[i]) / widths_[i];
      sum += std::exp(-0.5 * z * z) / (widths_[i] * std::sqrt(2 * M_PI));
    }
    return sum / static_cast<double>(points_.size() + 1);
  }

 private:
  std::vector<double> points_, widths_;
};

using EndedTrials = std::vector<const Observation*>;

std::string choose_number(const SweptField& field, const EndedTrials& best, const EndedTrials& others,
                          std::mt19937_64& random) {
  const auto points = [&](const EndedTrials& trials) {
    std::vector<double> all;
    for (const Observation* one : trials)
      all.push_back(to_unit(field, std::strtod(value_in(one->fields, field).c_str(), nullptr)));
    return all;
  };
  const UnitDensity good(points(best)), bad(points(others));
  double chosen = 0.5, highest = -1;
  for (int i = 0; i < kCandidates; ++i) {
    const double candidate = good.draw(random), ratio = good.at(candidate) / bad.at(candidate);
    if (ratio <= highest) continue;
    highest = ratio;
    chosen = candidate;
  }
  return of_unit(field, chosen);
}

std::string choose_word(const SweptField& field, const EndedTrials& best, const EndedTrials& others,
                        std::mt19937_64& random) {
  const auto share = [&](const EndedTrials& trials, const std::string& value) {
    const auto count = std::count_if(trials.begin(), trials.end(),
                                     [&](const Observation* one) { return value_in(one->fields, field) == value; });
    return static_cast<double>(count + 1) / static_cast<double>(trials.size() + field.values.size());
  };
  std::vector<double> weights;
  double sum = 0;
  for (const std::string& value : field.values) {
    weights.push_back(share(best, value) * share(best, value) / share(others, value));
    sum += weights.back();
  }
  double at = draw_unit(random) * sum;
  for (size_t i = 0; i < weights.size(); ++i)
    if ((at -= weights[i]) < 0) return field.values[i];
  return field.values.back();
}

}  // namespace

TrialFields choose_trial(const std::vector<SweptField>& fields, const std::vector<Observation>& ended, uint64_t seed,
                         size_t number) {
  if (number < kFirstTrials || ended.size() < 2)
    return random_trials(fields, static_cast<int64_t>(number) + 1, seed).back();
  EndedTrials all;
  for (const Observation& one : ended) all.push_back(&one);
  std::stable_sort(all.begin(), all.end(), [](const auto* a, const auto* b) { return a->badness < b->badness; });
  const auto count = std::max<size_t>(1, static_cast<size_t>(std::ceil(kBestShare * static_cast<double>(all.size()))));
  const auto cut = all.begin() + static_cast<std::ptrdiff_t>(count);
  const EndedTrials best(all.begin(), cut), others(cut, all.end());
  std::mt19937_64 random(seed * 1'000'003 + number);
  TrialFields trial;
  for (const SweptField& field : fields)
    trial.push_back(
        field.name + "=" +
        (field.values.empty() ? choose_number(field, best, others, random) : choose_word(field, best, others, random)));
  return trial;
}

}  // namespace trainctl
