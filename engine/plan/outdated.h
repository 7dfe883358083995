// Leaves out the parts of a job file that fit another number of ranks or stages than the command line asks for.
#pragma once

#include <string>
#include <vector>

#include "engine/graph/graph.h"
#include "engine/spec/job_spec.h"

namespace trainctl {

/// Where launch.ranks, parallel.stages or parallel.chunks is set on the command line, and stage_config or strategies of
/// the file do not fit it, they are left out, as if the command line had set them to null: the rest of the job still
/// says what is trained. Returns a note for each. What the command line itself sets is never left out.
std::vector<std::string> leave_out_outdated(JobSpec& spec, const Graph& graph);

}  // namespace trainctl
