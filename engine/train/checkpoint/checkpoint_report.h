// The checkpoint section of `trainctl plan`: the sizes of the files that the ranks would write.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "engine/planning/planned_job.h"

namespace trainctl {

/// The disk speed assumed for estimates; the plan prints it because disks differ.
inline constexpr double kAssumedBytesPerSecond = 500e6;

/// {"bytes": of the ranks' files and the integrated one, "files": with checkpoint.json and job.yaml, "seconds",
///  "assumed_bytes_per_second", "integrated_bytes"?, "ranks": [{"ranks": [0, 1], "bytes"}, …]}. A rank's `bytes`
/// is the size of its file, and of the host buffer from which it is written asynchronously. Computes the size for every
/// rank, not once per class, because replicas divide the writing of shared tensors among themselves. The job must save
/// its state.
nlohmann::ordered_json checkpoint_report(const PlannedJob& job);

/// {"bytes", "folder"} of a job that saves only its final weights. `programs` has one of each class of ranks.
nlohmann::ordered_json final_weights_report(const PlannedJob& job, const std::vector<Program>& programs);

}  // namespace trainctl
