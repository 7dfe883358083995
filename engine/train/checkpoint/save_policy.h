// Decides when a save is due, and which checkpoint is the best one (train.checkpoint).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/spec/job_spec.h"
#include "engine/train/checkpoint/checkpoint_directory.h"

namespace trainctl {

/// The facts that, together with the job, decide whether a save is due. Steps are counted as in SaveBoard.
struct SaveMoment {
  int64_t step = 0;
  int64_t last = -1;       ///< step of the last save; -1: none
  double seconds = 0;      ///< seconds since the last save, or since the first step
  double cost = 0;         ///< seconds that training lost by the last save; 0: not measured
  double run_seconds = 0;  ///< seconds since the first step
  int failures = 0;        ///< failures of the run so far
};

bool is_save_due(const CheckpointSpec& spec, int64_t steps_per_epoch, const SaveMoment& now);

/// Young's formula for the time between two saves: sqrt(2 * cost * time between failures) seconds, but at least 10 s
/// and at most an hour. The time between failures is assumed to be a day until the run has had failures.
double automatic_interval(double cost, double run_seconds, int failures);

/// The step of the complete checkpoint whose validation had the best value of a metric, or the last of several equal
/// ones; nothing if none has a value.
std::optional<int64_t> best_step(const std::vector<CheckpointEntry>& entries, const std::string& metric);

}  // namespace trainctl
