// Initializes DoRA's trained magnitudes with the row norms of the base weights, computed after the weights have been
// rounded to the format in which they are stored (the values that matrix products read).
#pragma once

#include <functional>

#include "engine/compile/program.h"
#include "engine/runtime/executor.h"
#include "engine/train/checkpoint/mapped_weights.h"

namespace trainctl {

/// Computes this rank's shards of all parameters with Init::Kind::row_norms and writes them into the arena. `weights`
/// must contain the base weights whose row norms these parameters are. `on_progress` is called once per parameter.
void init_row_norms(const Program& program, const MappedWeights& weights, Executor& executor,
                    const std::function<void()>& on_progress = {});

}  // namespace trainctl
