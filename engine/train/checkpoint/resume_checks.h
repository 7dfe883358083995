// Compares the state that a job keeps with the tensors of a checkpoint, before the checkpoint is restored.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "engine/planning/planned_job.h"
#include "engine/train/checkpoint/manifest.h"

namespace trainctl {

using StateKey = std::pair<std::string, std::string>;  ///< tensor, slot
/// The tensors that the job keeps from step to step, each with the shape of the whole tensor: weights, optimizer
/// states, running statistics, averages.
std::map<StateKey, Shape> kept_state(const PlannedJob& job);

/// Difference between the state that a job keeps from step to step and that of a checkpoint, by "layer1.weight" or
/// "layer1.weight:momentum".
struct StateDifference {
  std::vector<std::string> missing;   ///< the job has it, the checkpoint has not
  std::vector<std::string> extra;     ///< the checkpoint has it, the job has not
  std::vector<std::string> reshaped;  ///< "layer1.weight is [512, 784] in the job, [256, 784] in the checkpoint"

  bool empty() const { return missing.empty() && extra.empty() && reshaped.empty(); }
};
/// Compares the state of a job with that of a checkpoint. A checkpoint of step 0 may lack the optimizer's state
/// entirely: the optimizer then starts anew, and its state does not count as missing.
StateDifference difference(const PlannedJob& job, const Manifest& manifest);

/// Throws EnvError with the whole difference, if there is one; with `partial`, only if nothing fits. `checkpoint` is
/// the path of the checkpoint.
void require_same_state(const PlannedJob& job, const Manifest& manifest, const std::string& checkpoint, bool partial);

/// The same for the tensors that an evaluation reads: weights and running statistics.
void require_same_weights(const PlannedJob& job, const Manifest& manifest, const std::string& checkpoint);

}  // namespace trainctl
