// Results of the trials of a sweep, and their table, best first.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/sweep/sweep.h"
#include "cli/sweep/tpe.h"

namespace trainctl {

struct TrialResult {
  size_t trial = 0;
  TrialState state = TrialState::open;
  int64_t step = 0;
  double seconds = 0;
  /// "loss" and the metrics of the last step, then "validation loss", "validation accuracy", … of the last validation,
  /// and "best validation loss", … of all.
  std::vector<std::pair<std::string, double>> values;

  std::optional<double> value(const std::string& name) const;
};

/// Results of all trials, sorted by the value `by`, best first: lower is better for a loss, higher for any other value.
/// Trials without a finite value come last. "" selects the validation loss if there is one, else the loss. Throws
/// SpecError if no trial has such a value.
std::vector<TrialResult> results_of(const Sweep& sweep, std::string by);

/// The trials that have ended, for choosing the next one.
std::vector<Observation> observations_of(const Sweep& sweep, const std::string& by);

std::string results_table(const Sweep& sweep, const std::vector<TrialResult>& results);

}  // namespace trainctl
