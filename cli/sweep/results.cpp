// Results of the trials of a sweep, and their table, best first.
#include "cli/sweep/results.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "cli/report/metrics_data.h"
#include "cli/run/launch/run_end.h"
#include "cli/run/launch/validation_results.h"
#include "cli/text/table.h"
#include "engine/base/error.h"
#include "engine/base/measures.h"
#include "engine/base/text.h"

namespace trainctl {
namespace {

std::string_view word(TrialState state) {
  switch (state) {
    case TrialState::running:
      return "running";
    case TrialState::done:
      return "done";
    case TrialState::failed:
      return "failed";
    case TrialState::ended_early:
      return "ended early";
    case TrialState::open:
      break;
  }
  return "open";
}

TrialResult result_of(const Sweep& sweep, size_t trial) {
  TrialResult result{trial, state_of(sweep, trial)};
  const std::vector<int> runs = list_runs(sweep.log_dir(trial));
  if (runs.empty()) return result;
  const RunDirectory run(sweep.log_dir(trial), runs.back());
  if (const auto end = read_run_end(run)) {
    result.step = end->result.step;
    result.seconds = end->seconds;
    if (end->result.loss) result.values.emplace_back("loss", *end->result.loss);
    for (const auto& [name, value] : end->result.metrics) result.values.emplace_back(name, value);
  }
  const nlohmann::ordered_json metrics = metrics_data(run.file("metrics.jsonl"));
  static const std::set<std::string> kNoResults = {"samples", "seconds"};
  for (const auto& [name, curve] : metrics["validations"].items())
    if (!kNoResults.contains(name) && curve["values"].back().is_number())
      result.values.emplace_back("validation " + name, curve["values"].back());
  for (const ValidatedMetric& one : validated_metrics_of(metrics.value("validated", nlohmann::ordered_json())))
    if (std::isfinite(one.best)) result.values.emplace_back("best validation " + one.name, one.best);
  return result;
}

/// Names of all values, in the order in which they first appear.
std::vector<std::string> names_of(const std::vector<TrialResult>& results) {
  std::vector<std::string> names;
  for (const TrialResult& result : results)
    for (const auto& [name, value] : result.values)
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  return names;
}

bool has_name(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::vector<TrialResult> all_results(const Sweep& sweep) {
  std::vector<TrialResult> results;
  for (size_t trial = 0; trial < sweep.trials.size(); ++trial) results.push_back(result_of(sweep, trial));
  return results;
}

/// The value that ranks trials which have values of these names.
std::string measure_of(const std::vector<std::string>& names, const std::string& by) {
  if (!by.empty()) return by;
  return has_name(names, "validation loss") ? "validation loss" : "loss";
}

/// Lower is better; infinite without a finite value.
double badness_of(const TrialResult& result, const std::string& measure) {
  const double value = result.value(measure).value_or(NAN);
  if (!std::isfinite(value)) return INFINITY;
  return measure.ends_with("loss") ? value : -value;
}

}  // namespace

std::optional<double> TrialResult::value(const std::string& name) const {
  for (const auto& [known, number] : values)
    if (known == name) return number;
  return {};
}

std::vector<TrialResult> results_of(const Sweep& sweep, std::string by) {
  std::vector<TrialResult> results = all_results(sweep);
  const std::vector<std::string> names = names_of(results);
  if (!by.empty() && !has_name(names, by) && !names.empty())
    throw SpecError({}, "--by", "no trial has a value called '" + by + "'", "available: " + join(names));
  by = measure_of(names, by);
  std::stable_sort(results.begin(), results.end(),
                   [&](const TrialResult& a, const TrialResult& b) { return badness_of(a, by) < badness_of(b, by); });
  return results;
}

std::vector<Observation> observations_of(const Sweep& sweep, const std::string& by) {
  const std::vector<TrialResult> results = all_results(sweep);
  const std::string measure = measure_of(names_of(results), by);
  std::vector<Observation> ended;
  for (const TrialResult& result : results) {
    if (result.state == TrialState::open || result.state == TrialState::running) continue;
    ended.push_back(
        {sweep.trials[result.trial], result.state == TrialState::failed ? INFINITY : badness_of(result, measure)});
  }
  return ended;
}

std::string results_table(const Sweep& sweep, const std::vector<TrialResult>& results) {
  const std::vector<std::string> names = names_of(results);
  std::vector<std::string> headers = {">trial"};
  for (const std::string& field : sweep.trials.front()) headers.push_back(">" + field.substr(0, field.find('=')));
  for (const std::string& name : names) headers.push_back(">" + name);
  headers.insert(headers.end(), {">step", ">time", "state"});
  Table table(headers);
  for (const TrialResult& result : results) {
    std::vector<std::string> row = {std::to_string(result.trial + 1)};
    for (const std::string& field : sweep.trials[result.trial]) row.push_back(field.substr(field.find('=') + 1));
    for (const std::string& name : names) {
      const std::optional<double> value = result.value(name);
      row.push_back(value ? format_loss(*value) : "");
    }
    row.push_back(result.step > 0 ? std::to_string(result.step) : "");
    row.push_back(result.seconds > 0 ? format_duration(result.seconds) : "");
    row.emplace_back(word(result.state));
    table.add(std::move(row));
  }
  return table.str();
}

}  // namespace trainctl
