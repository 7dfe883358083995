// The validations of a run: the last value and the best one of each metric, and whether one of them ended the run.
#include "cli/run/launch/validation_results.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "engine/base/json_field.h"
#include "engine/base/measures.h"
#include "engine/spec/job_spec.h"

namespace trainctl {
namespace {

using Json = nlohmann::ordered_json;

double number_of(const Json& value, const Json& line) {
  if (value.is_number()) return value.get<double>();
  const std::string name = value.is_string() ? value.get<std::string>() : field_or(line, "not_finite", "nan");
  const double infinity = std::numeric_limits<double>::infinity();
  return name == "inf" ? infinity : name == "-inf" ? -infinity : std::numeric_limits<double>::quiet_NaN();
}

void add(std::vector<ValidatedMetric>& metrics, const Json& line) {
  const auto step = field_or(line, "run_step", int64_t{0});
  for (const auto& [name, value] : line.items()) {
    const std::string& key = name;
    static const std::vector<std::string> kOthers = {"kind", "epoch", "run_step", "samples", "seconds", "not_finite"};
    if (std::find(kOthers.begin(), kOthers.end(), key) != kOthers.end()) continue;
    if (!value.is_number() && !value.is_null()) continue;
    const double last = number_of(value, line);
    const auto known = std::find_if(metrics.begin(), metrics.end(), [&](const auto& one) { return one.name == key; });
    if (known == metrics.end()) {
      metrics.push_back({key, last, last, step});
      continue;
    }
    known->last = last;
    if (is_better(key, last, known->best) || (std::isnan(known->best) && !std::isnan(last))) {
      known->best = last;
      known->best_step = step;
    }
  }
}

Json json_of(double value) { return std::isfinite(value) ? Json(value) : Json(not_finite_name(value)); }

}  // namespace

void add_line(ValidationResults& results, const Json& line) {
  if (field_or(line, "kind", "") == "validation") add(results.metrics, line);
  if (!line.contains("stopped_at_step")) return;
  results.stop_reason = field_or(line, "reason", "");
  results.planned_steps = field_or(line, "steps", int64_t{0});
}

ValidationResults read_validations(const std::string& path) {
  ValidationResults results;
  std::ifstream file(path);
  for (std::string text; std::getline(file, text) && !file.eof();) {
    const bool is_validation = text.find("\"validation\"") != std::string::npos;
    if (!is_validation && text.find("\"stopped_at_step\"") == std::string::npos) continue;  // most lines are of steps
    const Json line = Json::parse(text, nullptr, false);
    if (line.is_object()) add_line(results, line);
  }
  return results;
}

Json to_json(const std::vector<ValidatedMetric>& metrics) {
  Json json = Json::object();
  for (const ValidatedMetric& one : metrics)
    json[one.name] = {{"last", json_of(one.last)}, {"best", json_of(one.best)}, {"best_step", one.best_step}};
  return json;
}

std::vector<ValidatedMetric> validated_metrics_of(const Json& json) {
  std::vector<ValidatedMetric> metrics;
  if (!json.is_object()) return metrics;
  for (const auto& [name, value] : json.items()) {
    if (!value.is_object() || !value.contains("last") || !value.contains("best")) continue;
    metrics.push_back({name, number_of(value["last"], value), number_of(value["best"], value),
                       field_or(value, "best_step", int64_t{0})});
  }
  return metrics;
}

const ValidatedMetric* main_metric(const std::vector<ValidatedMetric>& metrics) {
  for (const ValidatedMetric& one : metrics)
    if (one.name != "loss") return &one;
  return metrics.empty() ? nullptr : &metrics.front();
}

std::string validation_text(const std::vector<ValidatedMetric>& metrics) {
  std::string text;
  for (const ValidatedMetric& one : metrics) {
    text += fmt::format("{}{} {:.4f}", text.empty() ? "validation " : ", ", one.name, one.last);
    if (one.best != one.last && !std::isnan(one.best))
      text += fmt::format(" (best {:.4f} at step {})", one.best, one.best_step);
  }
  return text;
}

std::string short_validation_text(const std::vector<ValidatedMetric>& metrics) {
  const ValidatedMetric* main = main_metric(metrics);
  if (main == nullptr) return "";
  std::string text = fmt::format("{} {:.4f}", main->name, main->last);
  if (main->best != main->last && !std::isnan(main->best)) text += fmt::format(", best {:.4f}", main->best);
  return text;
}

}  // namespace trainctl
