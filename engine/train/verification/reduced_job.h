// A job of the same form that is small enough to run with all its ranks as threads of one process: a smaller batch,
// shorter sequences, fewer repeated blocks, narrower layers. Its plan cuts the same layers in the same way.
#pragma once

#include <string>
#include <vector>

#include "engine/planning/planned_job.h"

namespace trainctl {

/// The work of one step over all ranks: operations of products and attention, and those of updating every replica of
/// the weights.
double step_work(const PlannedJob& job);

struct ReducedJob {
  PlannedJob job;
  std::vector<std::string> changes;  ///< "batch 256 to 16", "12 blocks h to 2"; empty: nothing had to be reduced
};

/// The factor of the learning rate from one step to the next: a wrong count of steps is then a wrong rate.
inline constexpr double kVerifiedDecay = 0.8;

/// The job as verification runs it, on CPUs: `steps` steps in fp32 from initial weights with a falling learning rate,
/// without validation, saves and printed tensors. `eps` of its optimizer is large, so that updates are proportional to
/// gradients.
JobSpec verified_spec(JobSpec spec, int64_t steps);

/// Reduces the job until a step needs at most `most_work`, or nothing more can be reduced.
ReducedJob reduce_job(const JobSpec& spec, double most_work);

}  // namespace trainctl
