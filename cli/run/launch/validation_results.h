// The validations of a run: the last value and the best one of each metric, and whether one of them ended the run. Read
// from metrics.jsonl.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace trainctl {

struct ValidatedMetric {
  std::string name;  ///< "loss", "accuracy"
  double last = 0, best = 0;
  int64_t best_step = 0;

  friend bool operator==(const ValidatedMetric&, const ValidatedMetric&) = default;
};

struct ValidationResults {
  std::vector<ValidatedMetric> metrics;  ///< the loss first; empty: nothing was validated
  std::string stop_reason;               ///< train.stop_when: why the run ended early; "": it did not
  int64_t planned_steps = 0;             ///< steps that the run would have had; 0: not known

  bool ended_early() const { return !stop_reason.empty(); }
};

/// Adds a line of metrics.jsonl to the results, if it is about a validation or an early end.
void add_line(ValidationResults& results, const nlohmann::ordered_json& line);

/// `path`: metrics.jsonl. A missing file counts as an empty one; invalid lines are ignored.
ValidationResults read_validations(const std::string& path);

/// {"loss": {"last": 0.12, "best": 0.1, "best_step": 40}, …}; values that are not finite are strings.
nlohmann::ordered_json to_json(const std::vector<ValidatedMetric>& metrics);
std::vector<ValidatedMetric> validated_metrics_of(const nlohmann::ordered_json& json);

/// The metric that represents all: the first one that is not the loss, or the loss. Null if there is none.
const ValidatedMetric* main_metric(const std::vector<ValidatedMetric>& metrics);

/// "validation loss 0.0991 (best 0.0950 at step 310), accuracy 0.9690"; "" without metrics. The best value is left out
/// where the last one is the best.
std::string validation_text(const std::vector<ValidatedMetric>& metrics);

/// "accuracy 0.9690, best 0.9720": the main metric, for a cell of a table; "" without metrics.
std::string short_validation_text(const std::vector<ValidatedMetric>& metrics);

}  // namespace trainctl
