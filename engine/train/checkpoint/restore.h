// Restores a checkpoint into the arenas of any plan.
#pragma once

#include <cstdint>
#include <functional>

#include "engine/compile/program.h"
#include "engine/runtime/executor.h"
#include "engine/train/checkpoint/piece_reader.h"

namespace trainctl {

/// Selects the weights of a checkpoint that an executor reads: an evaluation takes their averages where the checkpoint
/// has them.
enum class WeightsRead : uint8_t { latest, averages };

/// Writes the state of this rank that the checkpoint has into the arena. Everything else keeps its initial values.
/// Reads only the ranges of files that this rank needs. `on_progress` is called after each part of a few MB.
void restore(const Program& program, PieceReader& reader, Executor& executor, WeightsRead read = WeightsRead::latest,
             const std::function<void()>& on_progress = {});

}  // namespace trainctl
