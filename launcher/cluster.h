// Which host each rank runs on. One host for now; all other code asks here, so that hosts can be added.
#pragma once

#include <string>
#include <vector>

#include "launcher/rank_names.h"

namespace trainctl {

struct RankPlace {
  int rank = 0;
  std::string host;
  int local_rank = 0;   ///< index among the ranks of its host
  int local_ranks = 1;  ///< number of ranks on its host
};

struct Cluster {
  std::vector<RankPlace> places;  ///< one a rank, in rank order
  RankNames names = {};
  int num_ranks() const { return static_cast<int>(places.size()); }
};

/// All ranks on this host: the workers, then the servers.
Cluster one_host(int workers, int servers = 0);

}  // namespace trainctl
