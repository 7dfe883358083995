// A number over the steps of a run, thinned for drawing.
#include "cli/report/curve.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "engine/base/measures.h"

namespace trainctl {
namespace {

using Json = nlohmann::ordered_json;

/// Adds the places of the points of [first, end) that are kept.
void keep(const Curve& curve, size_t first, size_t end, std::set<size_t>& kept) {
  size_t least = end, most = end, strange = end;
  for (size_t i = first; i < end; ++i) {
    const double value = curve.values[i];
    if (!std::isfinite(value)) {
      strange = std::min(strange, i);
      continue;
    }
    if (least == end || value < curve.values[least]) least = i;
    if (most == end || value > curve.values[most]) most = i;
  }
  for (const size_t i : {least, most, strange})
    if (i < end) kept.insert(i);
}

/// Nearest-rank percentile of sorted values: the smallest value that is not below the fraction `part` of them.
double percentile(const std::vector<double>& sorted, double part) {
  const auto rank = static_cast<size_t>(std::ceil(part * static_cast<double>(sorted.size())));
  return sorted[std::clamp<size_t>(rank, 1, sorted.size()) - 1];
}

}  // namespace

void Curve::add(int64_t step, double value) {
  steps.push_back(step);
  values.push_back(value);
}

Curve thinned(const Curve& curve, size_t points) {
  const size_t count = curve.values.size(), stretches = std::max<size_t>(points / 2, 1);
  if (count <= points) return curve;
  std::set<size_t> kept = {0, count - 1};
  for (size_t s = 0; s < stretches; ++s) keep(curve, s * count / stretches, (s + 1) * count / stretches, kept);
  Curve thin;
  for (const size_t i : kept) thin.add(curve.steps[i], curve.values[i]);
  return thin;
}

Json to_json(const Curve& curve) {
  Json values = Json::array();
  for (const double value : curve.values) values.push_back(std::isfinite(value) ? Json(value) : not_finite_name(value));
  return {{"steps", curve.steps}, {"values", values}};
}

Json distribution_json(std::vector<double> values) {
  Json json = {{"count", values.size()}};
  if (values.empty()) return json;
  std::sort(values.begin(), values.end());
  json["mean"] = std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
  json["median"] = percentile(values, 0.5);
  json["p90"] = percentile(values, 0.9);
  json["p99"] = percentile(values, 0.99);
  json["least"] = values.front();
  json["most"] = values.back();
  return json;
}

}  // namespace trainctl
