// Times whole steps of a job on one rank in this process, data and host work included.
#pragma once

#include "engine/base/units.h"
#include "engine/train/job.h"

namespace trainctl {

/// Of a step, once it runs evenly: on a CPU the median, since others may run there too; on a GPU, which reports its
/// steps in bursts, the mean. Trains for about `seconds`. `program` is compile(job, 0) of one rank.
/// `threads`: the rank's share of the host's cores, as in a run; on a GPU they prepare its samples.
Seconds measured_step(const PlannedJob& job, const Program& program, Seconds seconds, int threads);

}  // namespace trainctl
