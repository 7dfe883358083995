// Times whole steps of a job on one rank in this process, data and host work included.
#pragma once

#include <vector>

#include "engine/base/units.h"
#include "engine/planning/planned_job.h"

namespace trainctl {

struct MeasuredStep {
  /// Time per step once it is steady: on a CPU the median, since other processes may run there too; on a GPU, which
  /// reports its steps in bursts, the mean.
  Seconds seconds;
  /// Time of the kernels that an instruction launches, including the cost of timing: the median of the run's last
  /// steps.
  struct Launch {
    Seconds seconds;
    int instructions = 0;  ///< number of instructions that it runs; 0: an earlier launch runs this one
  };
  std::vector<Launch> launches;  ///< by instruction, on a GPU; else empty
};

/// Trains for about `seconds`. `program` is compile(job, 0) of one rank.
/// `threads`: the rank's share of the host's cores, as in a run; on a GPU they prepare its samples.
MeasuredStep measure_step(const PlannedJob& job, const Program& program, Seconds seconds, int threads);

}  // namespace trainctl
