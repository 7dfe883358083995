// Which cores each rank of a host may use, and how many threads that makes.
#pragma once

#include <string>
#include <vector>

#include "engine/spec/job_spec.h"
#include "launcher/cluster.h"
#include "launcher/topology.h"

namespace trainctl {

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
