// The outer weights of parallel.local_steps, from which replicas start each round of local steps.
#pragma once

#include "engine/compile/program.h"
#include "engine/runtime/executor.h"

namespace trainctl {

/// Before the first step, the outer weights are the weights.
void begin_outer_weights(const Program& program, Executor& executor);

}  // namespace trainctl
