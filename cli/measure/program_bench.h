// Times the steps of programs that were made for a measurement (program_builder.h) with the executor that runs use:
// with its streams, the events between them, and its graphs.
#pragma once

#include <vector>

#include "cli/measure/program_builder.h"
#include "engine/base/units.h"
#include "engine/spec/job_spec.h"

namespace trainctl {

/// Returns the time per step of each of the programs: the median of `samples` measurements, each of the slowest rank.
/// All have the same number of ranks; rank r uses GPU r. Operands hold random numbers. Forks, so call it while the
/// process has one thread. Throws EnvError, for example if a device has too little memory.
std::vector<Seconds> bench_programs(const std::vector<RankPrograms>& all, Device device, int samples);

}  // namespace trainctl
