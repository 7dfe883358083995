// The trained norms of DoRA as they start: those of the rows of the base, as products read them.
#pragma once

#include "engine/compile/program.h"
#include "engine/runtime/executor.h"
#include "engine/train/checkpoint/mapped_weights.h"

namespace trainctl {

/// Writes this rank's part of parameters with Init::Kind::row_norms into the arena. The files have their weights.
void load_norms(const Program& program, const MappedWeights& weights, Executor& executor);

}  // namespace trainctl
