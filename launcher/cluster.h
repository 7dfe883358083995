// Determines which host each rank runs on.
#pragma once

#include <string>
#include <vector>

#include "engine/spec/job_spec.h"
#include "launcher/rank_names.h"

namespace trainctl {

struct RankPlace {
  int rank = 0;
  std::string host;
  int local_rank = 0;   ///< index among the ranks of its host
  int local_ranks = 1;  ///< number of ranks on its host
  int host_number = 0;  ///< index of its host in the job's list
};

struct Cluster {
  std::vector<RankPlace> places;  ///< one per rank, in rank order
  RankNames names = {};
  int num_ranks() const { return static_cast<int>(places.size()); }
  int num_hosts() const { return places.empty() ? 0 : places.back().host_number + 1; }
};

/// A cluster with all ranks on this host: the workers, then the servers.
Cluster one_host(int workers, int servers = 0);

/// A cluster of the hosts in launch.hosts or launch.hostfile, host by host. Throws SpecError, and EnvError if the
/// file cannot be read.
Cluster several_hosts(const JobSpec& spec);

/// The cluster that the job selects.
Cluster cluster_of(const JobSpec& spec);

}  // namespace trainctl
