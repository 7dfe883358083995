// parallel.local_steps: the groups of ranks with weights of their own.
#pragma once

#include "engine/spec/job_spec.h"

namespace trainctl {

/// 1 without local_steps; parallel.replicas, or the number of hosts; 0: it is in a host file.
int num_replicas(const JobSpec& spec);

/// The job of one replica: its ranks, its part of the batch, and no hosts. `spec` has local_steps.
JobSpec spec_of_replica(const JobSpec& spec);

/// The step after which replicas that synchronized after `step` steps synchronize next: a multiple of local_steps, or
/// before the next one while rounds grow (outer.round_growth). Only for jobs with local_steps.
int64_t end_of_round(const ParallelSpec& parallel, int64_t step);

/// Synchronizations of a run of that many steps.
int64_t rounds_until(const ParallelSpec& parallel, int64_t steps);

/// The factor on the job's learning rate in local steps; 1 without them. Unless outer.local_rate states it, the root of
/// the number of replicas, at most of 2, for Adam: it divides by the size of the gradients, and those of a replica, of
/// a part of the batch, are larger by noise.
double local_rate_of(const JobSpec& spec);

/// The job on the ranks of one replica without local_steps, as it is evaluated; `spec` itself if it has none.
JobSpec without_local_steps(JobSpec spec);

}  // namespace trainctl
