// Loads the weights that a job starts from (`weights`).
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "engine/planning/planned_job.h"
#include "engine/train/checkpoint/mapped_weights.h"
#include "engine/train/checkpoint/piece_reader.h"
#include "engine/train/checkpoint/restore.h"

namespace trainctl {

/// The files of `weights`, matched with the tensors of the job, which must have that section. Reads only headers.
/// Throws SpecError, or EnvError with everything that does not fit.
MappedWeights start_weights(const PlannedJob& job);

/// Throws the errors that load_start would throw, but needs no arena. Does nothing for a job without `weights`.
/// `reads_ties`: also compares the values of tensors that the job ties, which requires reading them.
void require_start_weights(const PlannedJob& job, bool reads_ties = false);

/// The weights that the job's checkpoints leave out; empty if they leave out none. Reads samples of the files.
std::optional<StoredBase> base_of(const PlannedJob& job);

/// Writes this rank's part of a checkpoint's state into the arena, and that of its base, from the job's weights. Throws
/// EnvError if those are not the ones that the checkpoint was trained with. `on_progress`: called after each part of a
/// few MB.
void load_checkpoint(const PlannedJob& job, const Program& program, PieceReader& reader, Executor& executor,
                     WeightsRead read = WeightsRead::latest, const std::function<void()>& on_progress = {});

/// Throws EnvError if the files of `weights` are not the base of a checkpoint; `checkpoint` is its path.
void require_base(const WeightFiles& weights, const StoredBase& base, const std::string& checkpoint);

/// Writes this rank's part of the files of `weights` into the arena, and of the adapters of adapters.lora.from.
/// `on_progress`: called after each part of a few MB.
void load_start(const PlannedJob& job, const Program& program, Executor& executor,
                const std::function<void()>& on_progress = {});

}  // namespace trainctl
