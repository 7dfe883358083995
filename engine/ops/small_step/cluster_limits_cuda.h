// How many clusters of blocks run at once differs from card to card, by which of its multiprocessors were left out.
// Ranks that make the same numbers have to make them by the same kernels, to the last bit: where several run, all
// choose as the one that runs the fewest.
#pragma once

#include <array>
#include <cstdint>

namespace trainctl::cuda {

/// Of 2, 4, 8 and 16 blocks, each block with a multiprocessor to itself; 0: the device runs none.
using ClusterCounts = std::array<int32_t, 4>;

/// On the current device.
ClusterCounts count_clusters();

/// Kernels that this process prepares from now on are chosen as if no more ran at once.
void limit_clusters(const ClusterCounts& counts);

/// Of clusters of so many blocks; no more than there can be where nobody has set one.
int cluster_limit(int blocks);

}  // namespace trainctl::cuda
