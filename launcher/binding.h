// Decides which cores each rank of a host may use, and how many threads it gets.
#pragma once

#include <string>
#include <vector>

#include "engine/spec/job_spec.h"
#include "launcher/cluster.h"
#include "launcher/topology.h"

namespace trainctl {

struct RankBinding {
  std::vector<int> cpus;  ///< ascending ids; empty: not bound
  int threads = 1;        ///< number of threads of its kernels
};

/// Returns one binding per place of the cluster, in order. All places are on this host.
///   none: no rank is bound
///   core: the cores, NUMA node by node, are divided into equal runs. With fewer cores than ranks, hardware threads
///         are divided instead; with fewer of these, several ranks share one
///   numa: each rank gets all cores of the node that contains its run of cores (of several, if ranks < nodes)
/// Threads: a rank's cores, divided by the number of ranks that share them; at least one. Unbound workers share all
/// cores, and so do unbound servers: one role works while the other waits for it.
std::vector<RankBinding> bindings(const Cluster& cluster, const Topology& topology, BindMode mode);

/// Describes a binding: "CPUs 0-3,8", "not bound".
std::string describe(const RankBinding& binding);

}  // namespace trainctl
