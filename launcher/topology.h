// The CPUs of this host, read by hwloc.
#pragma once

#include <vector>

struct hwloc_topology;

namespace trainctl {

/// A logical CPU available to this process.
struct Cpu {
  int id = 0;
  int core = 0;  ///< CPUs with the same number are threads of one core; unique over the host
  int node = 0;  ///< NUMA node
};

struct Topology {
  std::vector<Cpu> cpus;
  double quota_cores = 0;  ///< CPU time that the control group allows, in cores; 0: no limit
};

/// The CPUs of this thread's affinity mask. Throws EnvError. No other thread may read the environment meanwhile.
Topology read_topology();

/// The CPUs of a topology that hwloc has loaded: this host's or a described one. Neighboring cores have neighboring
/// numbers. A CPU's node is the smallest one that contains it; nodes without CPUs (GPU or memory only) are ignored.
std::vector<Cpu> cpus_of(hwloc_topology* host);

}  // namespace trainctl
