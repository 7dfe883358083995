// Ranks to hosts, and how a host's cores are shared.
#include "launcher/cluster.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>

namespace trainctl {

Cluster one_host(int ranks) {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) name = {'l', 'o', 'c', 'a', 'l'};
  Cluster cluster;
  for (int rank = 0; rank < ranks; ++rank) cluster.places.push_back({rank, name.data(), rank, ranks});
  return cluster;
}

namespace {

/// cpu.max of control groups v2: "200000 100000" is two cores, "max 100000" no limit.
int quota_cores(int otherwise) {
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  double quota = 0, period = 0;
  if (!(file >> quota >> period) || period <= 0 || quota <= 0) return otherwise;
  return std::max(1, static_cast<int>(std::ceil(quota / period)));
}

}  // namespace

int usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  const int cores = sched_getaffinity(0, sizeof set, &set) == 0 ? std::max(1, CPU_COUNT(&set)) : 1;
  return std::min(cores, quota_cores(cores));
}

int threads_per_rank(int cores, int local_ranks) { return std::max(1, cores / std::max(1, local_ranks)); }

}  // namespace trainctl
