// Ends unpromising trials early: asynchronous successive halving (ASHA, Li et al. 2020, arXiv:1810.05934), in the form
// that stops trials instead of pausing them. A rung is a number of steps: first_step, first_step * factor, ... A trial
// that reaches a rung continues if its value there is among the best 1/factor (rounded up) of all trials that have
// reached the rung so far, so the first one always continues. Everything is derived from the files of the trials, so
// that a sweep that is resumed knows what happened before.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cli/sweep/sweep.h"

namespace trainctl {

/// One value of the metric that ranks the trials, reported by a running trial.
struct StepValue {
  int64_t run_step = 0;
  double value = 0;  ///< may be NaN or infinite
};

/// The values of a metric in the metrics.jsonl of all runs of a trial, read as the files grow.
class TrialValues {
 public:
  /// Adds the lines that were written since the last call.
  void read(const Sweep& sweep, size_t trial, const std::string& by);
  /// The values in the order of their steps. A step that a resumed run repeated counts once.
  const std::vector<StepValue>& list() const { return list_; }

 private:
  void add(int64_t run_step, double value);

  std::map<int, int64_t> read_bytes_;  ///< by run
  std::vector<StepValue> list_;
};

/// The value at a rung: of a validation metric, the first one at or after the rung (with "best", the best one up to
/// there); of a metric of steps, the mean over the second half of the steps up to the rung. None: not reached yet.
std::optional<double> value_at_rung(const std::vector<StepValue>& values, int64_t rung, const std::string& by);

/// Records why a trial ended.
struct RungDecision {
  int64_t rung = 0;   ///< run step
  double value = 0;   ///< its own value there
  double cutoff = 0;  ///< the worst value at this rung that continues
};

/// The first rung at which `trial` is not among the best, if there is one. `values`: of each trial, by its number.
std::optional<RungDecision> rung_that_ends(const std::vector<std::vector<StepValue>>& values, size_t trial,
                                           const Halving& halving);

/// The record of a trial that was ended early, in its log_dir: an ended trial stays ended when the sweep is resumed.
void write_decision(const Sweep& sweep, size_t trial, const RungDecision& decision);
std::optional<RungDecision> read_decision(const Sweep& sweep, size_t trial);

}  // namespace trainctl
