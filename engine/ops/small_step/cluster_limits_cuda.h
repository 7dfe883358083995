// The number of clusters of blocks that run at once differs from card to card, because it depends on the disabled
// multiprocessors. Ranks whose results must agree bit for bit have to run the same kernels, so all ranks choose kernels
// for the device that runs the fewest clusters.
#pragma once

#include <array>
#include <cstdint>

namespace trainctl::cuda {

/// Numbers of clusters of 2, 4, 8 and 16 blocks that run at once, one block per multiprocessor; 0: the device runs
/// none.
using ClusterCounts = std::array<int32_t, 4>;

/// Counts them on the current device.
ClusterCounts count_clusters();

/// From now on this process chooses its kernels as if the device ran no more clusters than `counts`.
void limit_clusters(const ClusterCounts& counts);

/// The limit for clusters of `blocks` blocks; INT32_MAX if unset.
int cluster_limit(int blocks);

}  // namespace trainctl::cuda
