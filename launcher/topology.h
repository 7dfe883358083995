// The CPUs of this host, as hwloc finds them.
#pragma once

#include <vector>

struct hwloc_topology;

namespace trainctl {

/// A logical CPU that this process may use.
struct Cpu {
  int id = 0;
  int core = 0;  ///< CPUs with the same number are threads of one core; unique over the host
  int node = 0;  ///< NUMA
};

struct Topology {
  std::vector<Cpu> cpus;
  double quota_cores = 0;  ///< CPU time that the control group allows, in cores; 0: no limit
};

/// The CPUs of this thread's affinity mask. Throws EnvError. Not beside threads that read the environment.
Topology read_topology();

/// The CPUs of a host that hwloc has loaded: this one, or one of a description. Neighbouring cores have neighbouring
/// numbers. A CPU's node is the smallest that it is in; nodes without CPUs (of GPUs, of memory alone) are nobody's.
std::vector<Cpu> cpus_of(hwloc_topology* host);

}  // namespace trainctl
