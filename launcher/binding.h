// Which cores each rank of a host may use, and how many threads that makes: pure, on a topology that a test can
// make up, and a reader of the real one.
#pragma once

#include <string>
#include <vector>

#include "engine/spec/job_spec.h"
#include "launcher/cluster.h"

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

/// The CPUs of this process's affinity mask, as /sys describes them; where it is silent each is a core of node 0.
Topology read_topology(const std::string& sys = "/sys/devices/system");

struct RankBinding {
  std::vector<int> cpus;  ///< ascending ids; empty: not bound
  int threads = 1;        ///< for its kernels
};

/// One a place, in order. All places are of this host.
///   none: nobody is bound
///   core: the cores, NUMA node by node, are dealt out in equal runs; where there are fewer cores than ranks, their
///         threads; where there are fewer of these, several ranks share one
///   numa: each rank has all cores of the node (fewer ranks than nodes: nodes) that its run of cores lies in
/// Threads: the cores that a rank can keep busy together with those that share them, at least one.
std::vector<RankBinding> bindings(const std::vector<RankPlace>& places, const Topology& topology, BindMode mode);

/// "CPUs 0-3,8", "not bound".
std::string describe(const RankBinding& binding);

}  // namespace trainctl
