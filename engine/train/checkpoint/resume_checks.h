// Compares a checkpoint with a job, before it is restored: what state the job keeps, whether the checkpoint has the same
// tensors, and at which step of the job it continues.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "engine/planning/planned_job.h"
#include "engine/train/checkpoint/manifest.h"
#include "engine/train/checkpoint/train_position.h"

namespace trainctl {

using StateKey = std::pair<std::string, std::string>;  ///< tensor, slot
/// The tensors that the job keeps from step to step, each with the shape of the whole tensor: weights, optimizer states,
/// running statistics, averages.
std::map<StateKey, Shape> kept_state(const PlannedJob& job);

/// Difference between the state that a job keeps from step to step and that of a checkpoint, by "layer1.weight" or
/// "layer1.weight:momentum".
struct StateDifference {
  std::vector<std::string> missing;   ///< the job has it, the checkpoint has not
  std::vector<std::string> extra;     ///< the checkpoint has it, the job has not
  std::vector<std::string> reshaped;  ///< "layer1.weight is [512, 784] in the job, [256, 784] in the checkpoint"

  bool empty() const { return missing.empty() && extra.empty() && reshaped.empty(); }
};
/// The optimizer's state is not missing from a checkpoint of step 0 that has none at all: it starts anew.
StateDifference difference(const PlannedJob& job, const Manifest& manifest);

/// Throws EnvError with the whole difference, if there is one; `checkpoint` is its path. With `partial` only if
/// nothing fits.
void require_same_state(const PlannedJob& job, const Manifest& manifest, const std::string& checkpoint, bool partial);

/// The same for what an evaluation reads: weights and running statistics.
void require_same_weights(const PlannedJob& job, const Manifest& manifest, const std::string& checkpoint);

/// Throws EnvError if the job's validation would evaluate samples that the checkpoint was trained on, because
/// dataset.split or the seed was another.
void require_untrained_samples(const PlannedJob& job, const Manifest& manifest, const std::string& checkpoint);

/// Returns the position at which the job resumes. Throws EnvError if the samples of the checkpoint are not a whole
/// number of steps of the job, if the rest of its epoch would have other samples, if training samples would move to the
/// validation, or if the job ends before it.
TrainPosition position_after(const PlannedJob& job, const Manifest& manifest, const std::string& checkpoint);

}  // namespace trainctl
