// Leaves out the parts of a job file that do not fit the number of ranks or stages that the command line sets.
#pragma once

#include <string>
#include <vector>

#include "engine/graph/graph.h"
#include "engine/spec/job_spec.h"

namespace trainctl {

/// If launch.ranks, parallel.stages or parallel.chunks is set on the command line, and stage_config or strategies of
/// the file do not fit it, they are left out, as if the command line had set them to null. Returns a note for each.
/// Fields that the command line itself sets are never left out.
std::vector<std::string> leave_out_outdated(JobSpec& spec, const Graph& graph);

}  // namespace trainctl
