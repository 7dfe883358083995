// See cluster.h.
#include "launcher/cluster.h"

#include <unistd.h>

#include <array>

namespace trainctl {

Cluster one_host(int workers, int servers) {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) name = {'l', 'o', 'c', 'a', 'l'};
  Cluster cluster;
  cluster.names = {workers};
  const int ranks = workers + servers;
  for (int rank = 0; rank < ranks; ++rank) cluster.places.push_back({rank, name.data(), rank, ranks});
  return cluster;
}

}  // namespace trainctl
