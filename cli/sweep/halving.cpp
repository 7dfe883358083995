// Ends unpromising trials early: asynchronous successive halving (ASHA, Li et al. 2020, arXiv:1810.05934).
#include "cli/sweep/halving.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/base/json_field.h"
#include "engine/base/measures.h"
#include "engine/base/output_file.h"
#include "engine/spec/job_spec.h"

namespace trainctl {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kValidationPrefix = "validation ", kBest = "best validation ";

bool is_validated(const std::string& by) { return by.starts_with(kValidationPrefix) || by.starts_with(kBest); }

/// "accuracy" of "best validation accuracy".
std::string metric_of(const std::string& by) {
  if (by.starts_with(kBest)) return by.substr(kBest.size());
  return by.starts_with(kValidationPrefix) ? by.substr(kValidationPrefix.size()) : by;
}

double number_in(const Json& line, const std::string& metric) {
  const auto found = line.find(metric);
  return found != line.end() && found->is_number() ? found->get<double>() : NAN;
}

std::string decision_path(const Sweep& sweep, size_t trial) { return sweep.log_dir(trial) + "/ended_early.json"; }

}  // namespace

void TrialValues::read(const Sweep& sweep, size_t trial, const std::string& by) {
  const std::string metric = metric_of(by), quoted = '"' + metric + '"';
  for (const int run : list_runs(sweep.log_dir(trial))) {
    int64_t& read_bytes = read_bytes_[run];
    std::ifstream file(RunDirectory(sweep.log_dir(trial), run).file("metrics.jsonl"));
    file.seekg(read_bytes);
    for (std::string text; std::getline(file, text) && !file.eof();) {  // a line without its end is still being written
      read_bytes += static_cast<int64_t>(text.size()) + 1;
      if (text.find(quoted) == std::string::npos) continue;
      const Json line = Json::parse(text, nullptr, false);
      if (!line.is_object() || !line.contains("run_step") || !line.contains(metric)) continue;
      const bool is_validation = field_or(line, "kind", "") == "validation";
      if (is_validation != is_validated(by) || (!is_validation && line.contains("kind"))) continue;
      add(field_or(line, "run_step", int64_t{0}), number_in(line, metric));
    }
  }
}

void TrialValues::add(int64_t run_step, double value) {
  const auto at = std::lower_bound(list_.begin(), list_.end(), run_step,
                                   [](const StepValue& one, int64_t step) { return one.run_step < step; });
  if (at != list_.end() && at->run_step == run_step)
    at->value = value;
  else
    list_.insert(at, {run_step, value});
}

std::optional<double> value_at_rung(const std::vector<StepValue>& values, int64_t rung, const std::string& by) {
  if (values.empty() || values.back().run_step < rung) return {};
  const auto after = std::find_if(values.begin(), values.end(), [&](const StepValue& v) { return v.run_step >= rung; });
  if (by.starts_with(kBest)) {
    double best = NAN;
    for (auto at = values.begin(); at <= after; ++at)
      if (std::isnan(best) || is_better(metric_of(by), at->value, best)) best = at->value;
    return best;
  }
  if (is_validated(by)) return after->value;
  double sum = 0;
  int64_t count = 0;
  for (auto at = values.begin(); at <= after; ++at) {
    if (2 * at->run_step < rung) continue;
    sum += at->value;
    ++count;
  }
  return sum / static_cast<double>(count);
}

std::optional<RungDecision> rung_that_ends(const std::vector<std::vector<StepValue>>& values, size_t trial,
                                           const Halving& halving) {
  const std::string metric = metric_of(halving.by);
  const auto better = [&](double a, double b) {
    if (!std::isfinite(a) || !std::isfinite(b)) return std::isfinite(a);
    return is_better(metric, a, b);
  };
  for (int64_t rung = halving.first_step;; rung *= halving.factor) {
    const std::optional<double> own = value_at_rung(values[trial], rung, halving.by);
    if (!own) return {};
    std::vector<double> reached;
    for (const std::vector<StepValue>& one : values)
      if (const auto value = value_at_rung(one, rung, halving.by)) reached.push_back(*value);
    std::sort(reached.begin(), reached.end(), better);
    const auto count = static_cast<int64_t>(reached.size());
    const int64_t passing = std::max<int64_t>(1, (count + halving.factor - 1) / halving.factor);
    const double cutoff = reached[static_cast<size_t>(passing - 1)];
    if (!std::isfinite(*own) || better(cutoff, *own)) return RungDecision{rung, *own, cutoff};
  }
}

void write_decision(const Sweep& sweep, size_t trial, const RungDecision& decision) {
  const auto number = [](double value) { return std::isfinite(value) ? Json(value) : Json(not_finite_name(value)); };
  const Json json = {{"rung", decision.rung}, {"value", number(decision.value)}, {"cutoff", number(decision.cutoff)}};
  write_output(decision_path(sweep, trial), json.dump() + "\n");
}

std::optional<RungDecision> read_decision(const Sweep& sweep, size_t trial) {
  std::ifstream file(decision_path(sweep, trial));
  if (!file) return {};
  const Json json = Json::parse(file, nullptr, false);
  if (!json.is_object() || !json.contains("rung")) return {};
  return RungDecision{field_or(json, "rung", int64_t{0}), number_in(json, "value"), number_in(json, "cutoff")};
}

}  // namespace trainctl
