// The position of a run between two steps.
#pragma once

#include <cstdint>

#include "engine/base/loss_scale_state.h"
#include "engine/train/files/metrics.h"

namespace trainctl {

/// The position at which a run resumes: everything that is known about the steps before it, apart from the state in the
/// arena.
struct TrainPosition {
  int64_t step = 0;  ///< the next step, from 0 over the whole run
  EpochSums epoch;   ///< sums over the steps of its epoch before it
  bool is_finite = true;
  /// `values` are the results of the validation that followed that step, if there was one. `best` has the best values
  /// of all validations before `step`.
  ValidationReport validation;
  LossScaleState loss_scale = {};
};

}  // namespace trainctl
