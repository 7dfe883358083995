// A run's metrics.jsonl (docs/logs.md) as the data of a page.
#include "cli/report/metrics_data.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "cli/report/curve.h"
#include "cli/run/launch/validation_results.h"
#include "engine/base/error.h"
#include "engine/base/json_field.h"

namespace trainctl {
namespace {

using Json = nlohmann::ordered_json;

/// Twice the width of a chart in pixels.
constexpr size_t kPoints = 1600;
constexpr size_t kMostEvents = 400, kMostValidationsWithTexts = 40;

/// The number of a field; nan if it has none.
double metric_number(const Json& value, const Json& line) {
  if (value.is_number()) return value.get<double>();
  const std::string name = field_or(line, "not_finite", "nan");
  return name == "inf" ? INFINITY : name == "-inf" ? -INFINITY : NAN;
}

class MetricsReader {
 public:
  void add(Json line) {
    const std::string kind = field_or(line, "kind", "");
    add_line(results_, line);
    if (line.contains("start_up")) {
      if (!last_.is_null()) restarts_.push_back(field_or(last_, "run_step", int64_t{0}));
      start_up_ = line["start_up"];
    } else if (line.contains("epoch_end")) {
      add_to(epochs_, line, field_or(line, "last_step", int64_t{0}));
    } else if (kind == "validation") {
      add_to(validations_, line, field_or(line, "run_step", int64_t{0}));
      add_texts(line);
    } else if (line.contains("run_step") && line["run_step"].is_number_integer() && !line.contains("kind")) {
      add_step(std::move(line));
    } else if (kind == "loads") {
      add_to(loads_, line, field_or(line, "run_step", int64_t{0}));
    } else if (kind == "workers") {
      workers_ = std::move(line);
    } else if (events_.size() < kMostEvents) {
      events_.push_back(std::move(line));
    }
  }

  Json take() {
    Json data = {{"curves", curves_json(steps_)},
                 {"epochs", curves_json(epochs_)},
                 {"validations", curves_json(validations_)},
                 {"loads", curves_json(loads_)},
                 {"step_seconds", distribution_json(seconds_)},
                 {"events", std::move(events_)}};
    if (!results_.metrics.empty()) data["validated"] = to_json(results_.metrics);
    if (!texts_.empty()) data["texts"] = std::move(texts_);
    if (!last_.is_null()) data["last"] = std::move(last_);
    if (!restarts_.empty()) data["restarted_after"] = std::move(restarts_);
    if (!start_up_.is_null()) data["start_up"] = std::move(start_up_);
    if (!workers_.is_null()) data["workers"] = std::move(workers_);
    return data;
  }

 private:
  using Curves = std::vector<std::pair<std::string, Curve>>;  ///< in the order in which they appear

  void add_step(Json line) {
    add_to(steps_, line, line["run_step"]);
    if (line.contains("seconds") && line["seconds"].is_number()) seconds_.push_back(line["seconds"]);
    last_ = std::move(line);
  }

  /// The texts of a validation; of many validations, the first and the last ones.
  void add_texts(const Json& line) {
    if (!line.contains("texts") || !line["texts"].is_array()) return;
    if (texts_.size() == kMostValidationsWithTexts) texts_.erase(kMostValidationsWithTexts / 2);
    texts_.push_back({{"step", field_or(line, "run_step", int64_t{0})}, {"texts", line["texts"]}});
  }

  static void add_to(Curves& curves, const Json& line, int64_t step) {
    static const std::set<std::string> kNoCurves = {"epoch", "step",      "run_step", "not_finite",
                                                    "kind",  "epoch_end", "steps",    "last_step"};
    for (const auto& [key, value] : line.items()) {
      const std::string& name = key;  // clang 14 captures no structured binding
      if (kNoCurves.contains(name) || !(value.is_number() || value.is_null())) continue;
      auto curve = std::find_if(curves.begin(), curves.end(), [&](const auto& known) { return known.first == name; });
      if (curve == curves.end()) curve = curves.insert(curves.end(), {name, Curve{}});
      curve->second.add(step, metric_number(value, line));
    }
  }

  static Json curves_json(const Curves& curves) {
    Json json = Json::object();
    for (const auto& [name, curve] : curves) json[name] = to_json(thinned(curve, kPoints));
    return json;
  }

  ValidationResults results_;
  Curves steps_, epochs_, validations_, loads_;
  std::vector<double> seconds_;
  Json events_ = Json::array(), texts_ = Json::array();
  Json restarts_ = Json::array();  ///< steps after which the ranks were started again
  Json last_, start_up_, workers_;
};

}  // namespace

Json metrics_data(const std::string& path) {
  MetricsReader metrics;
  std::ifstream file(path);
  std::string text;
  for (int64_t number = 1; std::getline(file, text) && !file.eof(); ++number) {
    Json line = Json::parse(text, nullptr, false);
    if (!line.is_object()) throw SpecError({}, path, "line " + std::to_string(number) + " is not a JSON object");
    metrics.add(std::move(line));
  }
  return metrics.take();
}

}  // namespace trainctl
