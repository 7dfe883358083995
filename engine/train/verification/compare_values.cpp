// The distance between two runs of a job, tensor by tensor.
#include "engine/train/verification/compare_values.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

namespace trainctl {
namespace {

constexpr size_t kMostFindings = 8;

struct NamedDifference {
  std::string name;
  double relative = 0;
};

ValueDifference summary_of(std::vector<NamedDifference> differences, double tolerance) {
  ValueDifference summary;
  std::stable_sort(differences.begin(), differences.end(),
                   [](const auto& a, const auto& b) { return a.relative > b.relative; });
  if (!differences.empty() && differences.front().relative > 0) {
    summary.largest = differences.front().relative;
    summary.at = differences.front().name;
  }
  for (const NamedDifference& each : differences)
    if (each.relative > tolerance && summary.findings.size() < kMostFindings)
      summary.findings.push_back(fmt::format("{} differs by {:.2e}", each.name, each.relative));
  return summary;
}

double squared_norm(const std::vector<float>& values, const std::vector<float>* minus = nullptr) {
  double sum = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const double value = minus == nullptr ? double{values[i]} : double{values[i]} - (*minus)[i];
    sum += value * value;
  }
  return sum;
}

/// Returns difference / scale; infinite if the quotient is nan, because a value is then not finite.
double ratio(double difference, double scale) {
  if (difference == 0) return 0;
  const double relative = difference / std::max(scale, std::numeric_limits<double>::min());
  return std::isfinite(relative) ? relative : std::numeric_limits<double>::infinity();
}

ValueDifference compare(const TensorValues& values, const TensorValues& expected, const TensorValues* start,
                        double tolerance, double floor) {
  double all = 0;
  const auto before = [&](const std::string& name) {
    const auto found = start == nullptr ? TensorValues::const_iterator{} : start->find(name);
    return start == nullptr || found == start->end() ? nullptr : &found->second;
  };
  for (const auto& [name, tensor] : expected) all += squared_norm(tensor, before(name));
  std::vector<NamedDifference> differences;
  for (const auto& [name, tensor] : expected) {
    const auto found = values.find(name);
    if (found == values.end() || found->second.size() != tensor.size()) {
      differences.push_back({name, std::numeric_limits<double>::infinity()});
      continue;
    }
    const double scale = std::max(std::sqrt(squared_norm(tensor, before(name))), floor * std::sqrt(all));
    differences.push_back({name, ratio(std::sqrt(squared_norm(found->second, &tensor)), scale)});
  }
  for (const auto& [name, tensor] : values)
    if (!expected.contains(name)) differences.push_back({name, std::numeric_limits<double>::infinity()});
  return summary_of(std::move(differences), tolerance);
}

bool has_same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace

ValueDifference compare_losses(const std::vector<float>& values, const std::vector<float>& expected, double tolerance) {
  std::vector<NamedDifference> differences;
  for (size_t i = 0; i < std::max(values.size(), expected.size()); ++i) {
    const std::string name = fmt::format("step {}", i + 1);
    if (i >= values.size() || i >= expected.size())
      differences.push_back({name, std::numeric_limits<double>::infinity()});
    else
      differences.push_back({name, ratio(std::abs(double{values[i]} - expected[i]), std::abs(double{expected[i]}))});
  }
  return summary_of(std::move(differences), tolerance);
}

std::vector<std::string> metric_differences(const ThreadRun& run, const ThreadRun& expected, double tolerance,
                                            int64_t rows) {
  // Rounding decides which class is the largest if two are equal, so two rows may be counted differently.
  const double of_rows = 2.0 / static_cast<double>(std::max<int64_t>(rows, 1));
  std::vector<std::string> findings;
  for (const auto& [name, values] : expected.metrics) {
    const auto found = run.metrics.find(name);
    if (found == run.metrics.end() || found->second.size() != values.size()) {
      findings.push_back(name + " is not reported after each step");
      continue;
    }
    for (size_t i = 0; i < values.size(); ++i) {
      const double difference = std::abs(found->second[i] - values[i]);
      if (difference <= std::max(tolerance * std::abs(values[i]), of_rows)) continue;
      findings.push_back(
          fmt::format("{} is {:.6g} after step {}, on one rank {:.6g}", name, found->second[i], i + 1, values[i]));
      break;
    }
  }
  return findings;
}

ValueDifference compare_tensors(const TensorValues& values, const TensorValues& expected, double tolerance,
                                double floor) {
  return compare(values, expected, nullptr, tolerance, floor);
}

ValueDifference compare_moves(const TensorValues& values, const TensorValues& expected, const TensorValues& start,
                              double tolerance, double floor, const std::set<std::string>& left_out) {
  const auto kept = [&](TensorValues tensors) {
    std::erase_if(
        tensors, [&](const auto& tensor) { return left_out.contains(tensor.first.substr(0, tensor.first.find(':'))); });
    return tensors;
  };
  if (left_out.empty()) return compare(values, expected, &start, tolerance, floor);
  return compare(kept(values), kept(expected), &start, tolerance, floor);
}

std::set<std::string> rounding_alone(const TensorValues& gradients, double floor) {
  double all = 0;
  for (const auto& [name, tensor] : gradients) all += squared_norm(tensor);
  std::set<std::string> names;
  for (const auto& [name, tensor] : gradients)
    if (std::sqrt(squared_norm(tensor)) < floor * std::sqrt(all)) names.insert(name);
  return names;
}

std::vector<std::string> differing_bits(const ThreadRun& a, const ThreadRun& b) {
  std::vector<std::string> names;
  if (!has_same_bits(a.losses, b.losses)) names.push_back("losses");
  for (const auto& [name, values] : a.end) {
    const auto other = b.end.find(name);
    if (other == b.end.end() || !has_same_bits(values, other->second)) names.push_back(name);
  }
  return names;
}

}  // namespace trainctl
