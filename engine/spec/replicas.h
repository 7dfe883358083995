// parallel.local_steps: the groups of ranks with weights of their own.
#pragma once

#include "engine/spec/job_spec.h"

namespace trainctl {

/// Returns the number of replicas: parallel.replicas, or the number of hosts. It is 1 without local_steps, and 0 if it
/// is not known because the hosts are in a host file.
int num_replicas(const JobSpec& spec);

/// The job of one replica: its ranks, its part of the batch, and no hosts. `spec` has local_steps.
JobSpec spec_of_replica(const JobSpec& spec);

/// The step after which replicas that synchronized after `step` steps synchronize next: a multiple of local_steps, or
/// before the next one while rounds grow (outer.round_growth). Only for jobs with local_steps.
int64_t end_of_round(const ParallelSpec& parallel, int64_t step);

/// Returns the number of synchronizations of a run of `steps` steps.
int64_t rounds_until(const ParallelSpec& parallel, int64_t steps);

/// Returns the factor on the job's learning rate in local steps; 1 without local steps. It is outer.local_rate if the
/// job gives it. Otherwise, for Adam it is the square root of the number of replicas, but at most that of 2. The
/// reason: Adam divides by the size of the gradients, and the gradients of a replica are larger, because noise averages
/// out less over its part of the batch.
double local_rate_of(const JobSpec& spec);

/// The job on the ranks of one replica without local_steps, as it is evaluated; `spec` itself if it has none.
JobSpec without_local_steps(JobSpec spec);

}  // namespace trainctl
