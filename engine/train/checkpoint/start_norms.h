// The trained norms of DoRA as they start: those of the rows of the base, as products read them.
#pragma once

#include <functional>

#include "engine/compile/program.h"
#include "engine/runtime/executor.h"
#include "engine/train/checkpoint/mapped_weights.h"

namespace trainctl {

/// Writes this rank's part of parameters with Init::Kind::row_norms into the arena. The files have their weights.
/// `on_progress`: called after each parameter.
void load_norms(const Program& program, const MappedWeights& weights, Executor& executor,
                const std::function<void()>& on_progress = {});

}  // namespace trainctl
