// Report of `trainctl plan` on checkpoints, read from the files that the ranks would write.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "engine/planning/planned_job.h"

namespace trainctl {

/// Disks differ; the plan says which speed it assumes.
inline constexpr double kAssumedBytesPerSecond = 500e6;

/// {"bytes": of the ranks' files and the integrated one, "files": with checkpoint.json and job.yaml, "seconds",
///  "assumed_bytes_per_second", "integrated_bytes"?, "ranks": [{"ranks": [0, 1], "bytes"}, …]}. `bytes` of a rank are
/// those of its file, and of the memory in which its copy waits for the disk. Sizes every rank's file: ranks of one
/// class share the work of writing what they all have. Needs a job that saves its state.
nlohmann::ordered_json checkpoint_report(const PlannedJob& job);

/// {"bytes", "folder"} of a job that saves only its final weights. `programs` has one of each class of ranks.
nlohmann::ordered_json final_weights_report(const PlannedJob& job, const std::vector<Program>& programs);

}  // namespace trainctl
