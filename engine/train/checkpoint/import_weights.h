// Weights of another tool as a checkpoint of step 0, from which a run resumes. It has no state of the optimizer.
#pragma once

#include <string>
#include <vector>

#include "engine/planning/planned_job.h"
#include "engine/train/checkpoint/name_map.h"
#include "engine/train/checkpoint/weight_files.h"
#include "engine/train/files/disk.h"

namespace trainctl {

struct ImportOptions {
  std::string version;   ///< version of trainctl
  std::string job;       ///< the resolved job, as text
  bool partial = false;  ///< take what fits, instead of failing
};

struct ImportedWeights {
  int64_t tensors = 0;
  int64_t bytes = 0;                  ///< bytes of the files' tensors that were read
  std::vector<std::string> ignored;   ///< theirs that the map says to ignore
  std::vector<std::string> tied;      ///< "lm_head.weight is transformer.wte.weight"
  std::vector<std::string> missing;   ///< ours that the file has not; all three empty unless `partial`
  std::vector<std::string> extra;     ///< theirs that no tensor of the job takes
  std::vector<std::string> reshaped;  ///< and why
  std::vector<std::string> unused;    ///< patterns of the map that no tensor of the job has
};

/// Writes the folder `directory`, which must not be there: it appears when it is whole. Throws EnvError with all that
/// does not fit, and SpecError at the pattern whose order does not fit a tensor,
/// or that gives a tensor of theirs to a second one of ours.
ImportedWeights import_weights(const PlannedJob& job, const WeightFiles& files, NameMap map,
                               const std::string& directory, const ImportOptions& options, Disk& disk = real_disk());

}  // namespace trainctl
