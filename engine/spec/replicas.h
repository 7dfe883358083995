// parallel.local_steps: the groups of ranks with weights of their own.
#pragma once

#include "engine/spec/job_spec.h"

namespace trainctl {

/// 1 without local_steps; parallel.replicas, or the number of hosts; 0: it is in a host file.
int num_replicas(const JobSpec& spec);

/// The job of one replica: its ranks, its part of the batch, and no hosts. `spec` has local_steps.
JobSpec spec_of_replica(const JobSpec& spec);

/// The outer optimizer of a job that has no parallel.outer, and the defaults of its fields. OuterSpec has the values of
/// the paper, for hundreds of rounds; these lose less in the first dozens (docs/local_steps.md has the measurements).
OuterSpec default_outer();

/// The job on the ranks of one replica without local_steps, as it is evaluated; `spec` itself if it has none.
JobSpec without_local_steps(JobSpec spec);

}  // namespace trainctl
