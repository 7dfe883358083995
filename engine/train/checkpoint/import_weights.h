// Weights of another tool as a checkpoint of step 0, from which a run resumes. It has no optimizer state.
#pragma once

#include <string>

#include "engine/planning/planned_job.h"
#include "engine/train/checkpoint/mapped_weights.h"
#include "engine/train/files/disk.h"

namespace trainctl {

struct ImportOptions {
  std::string version;  ///< version of trainctl
  std::string job;      ///< the resolved job, as text
};

/// Writes the folder `directory`, which must not exist: it appears when it is complete. Throws EnvError.
void import_weights(const PlannedJob& job, const MappedWeights& weights, const std::string& directory,
                    const ImportOptions& options, Disk& disk = real_disk());

}  // namespace trainctl
