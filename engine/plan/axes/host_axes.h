// Which ranks of a stage share a host, as axes of its mesh.
#pragma once

#include "engine/machine/machine.h"
#include "engine/plan/mesh.h"
#include "engine/spec/job_spec.h"

namespace trainctl {

/// Ranks that lie on one host: of launch.hosts, or of the nodes or pods that launch.target asks for; else as many as
/// the machine has devices. 0: hosts have different numbers.
int ranks_of_host(const JobSpec& spec, const Machine& machine);

/// The axes along which all groups of a stage's ranks are on one host each: the last ones, which join neighbours.
Axes axes_within_hosts(const Mesh& mesh, int ranks_of_host);

}  // namespace trainctl
