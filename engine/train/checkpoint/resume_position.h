// Determines at which step a job resumes from a checkpoint, and whether its samples continue where the checkpoint's
// ended.
#pragma once

#include <string>

#include "engine/planning/planned_job.h"
#include "engine/train/checkpoint/manifest.h"
#include "engine/train/checkpoint/train_position.h"

namespace trainctl {

/// Throws EnvError if the job's validation would evaluate samples that the checkpoint was trained on, because
/// dataset.split or the seed was another.
void require_untrained_samples(const PlannedJob& job, const Manifest& manifest, const std::string& checkpoint);

/// Returns the position at which the job resumes. Throws EnvError if the samples of the checkpoint are not a whole
/// number of steps of the job, if the rest of its epoch would have other samples, if training samples would move to the
/// validation, or if the job ends before it.
TrainPosition position_after(const PlannedJob& job, const Manifest& manifest, const std::string& checkpoint);

}  // namespace trainctl
