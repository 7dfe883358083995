// The number of clusters of blocks that run at once differs from card to card, because it depends on the disabled
// multiprocessors. Counts clusters of an empty kernel whose blocks each take all shared memory of a multiprocessor.
#include <limits>

#include "engine/ops/small_step/cluster_limits_cuda.h"
#include "engine/ops/small_step/clusters_cuda.cuh"

namespace trainctl::cuda {
namespace {

constexpr int kThreads = 32;

__global__ void alone_on_its_multiprocessor() {}

ClusterCounts limits = [] {
  ClusterCounts none{};
  none.fill(std::numeric_limits<int32_t>::max());
  return none;
}();

int count(int blocks, int shared_bytes) {
  const ClusterLaunch one(dim3(static_cast<unsigned>(blocks)), kThreads, static_cast<size_t>(shared_bytes), blocks,
                          nullptr);
  return max_active_clusters(alone_on_its_multiprocessor, one);
}

}  // namespace

ClusterCounts count_clusters() {
  int device = 0, most = 0;
  cuda_check(cudaGetDevice(&device), "cudaGetDevice");
  cuda_check(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), "cudaDeviceGetAttribute");
  if (!built_for_hopper() || !allow_large_clusters(alone_on_its_multiprocessor, most)) return {};
  return {count(2, most), count(4, most), count(8, most), count(16, most)};
}

void limit_clusters(const ClusterCounts& counts) { limits = counts; }

int cluster_limit(int blocks) { return limits[blocks <= 2 ? 0 : blocks <= 4 ? 1 : blocks <= 8 ? 2 : 3]; }

}  // namespace trainctl::cuda
