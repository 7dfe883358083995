// Determines which ranks of a stage share a host, as axes of its mesh.
#pragma once

#include "engine/machine/machine.h"
#include "engine/plan/mesh.h"
#include "engine/spec/job_spec.h"

namespace trainctl {

/// Number of ranks per host: from launch.hosts, or from the nodes or pods that launch.target requests; else the number
/// of devices of the machine. 0: hosts have different numbers.
int ranks_of_host(const JobSpec& spec, const Machine& machine);

/// The axes along which each group of a stage's ranks is on one host: the last ones, which join neighboring ranks.
Axes axes_within_hosts(const Mesh& mesh, int ranks_of_host);

}  // namespace trainctl
