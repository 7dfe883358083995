// Asynchronous copies from global to shared memory, and clusters of blocks.
#pragma once

#include "engine/ops/cuda/launch_cuda.h"

namespace trainctl::cuda {

/// Copies 4 or 16 bytes to shared memory asynchronously; writes zeros where `there` is false.
template <int kBytes>
__device__ void copy_async(float* to, const float* from, bool there) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  const auto address = static_cast<unsigned>(__cvta_generic_to_shared(to));
  const int bytes = there ? kBytes : 0;
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(bytes) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(address), "l"(from), "r"(bytes) : "memory");
  }
#endif
}
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kPending>
__device__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

/// The configuration of a launch in clusters of `blocks` along x; 1: without clusters. The kernel may start before the
/// preceding one has ended, as with launch().
struct ClusterLaunch {
  cudaLaunchAttribute attributes[2]{};
  cudaLaunchConfig_t config{};

  ClusterLaunch(dim3 grid, int threads, size_t shared_bytes, int blocks, CudaStream stream) {
    unsigned count = 0;
    if (blocks > 1) {
      attributes[count].id = cudaLaunchAttributeClusterDimension;
      attributes[count].val.clusterDim.x = static_cast<unsigned>(blocks);
      attributes[count].val.clusterDim.y = attributes[count].val.clusterDim.z = 1;
      ++count;
    }
    if (built_for_hopper()) {
      attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
      attributes[count].val.programmaticStreamSerializationAllowed = 1;
      ++count;
    }
    config.gridDim = grid;
    config.blockDim = dim3(static_cast<unsigned>(threads));
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream;
    config.attrs = attributes;
    config.numAttrs = count;
  }
  ClusterLaunch(const ClusterLaunch&) = delete;
  ClusterLaunch& operator=(const ClusterLaunch&) = delete;
};

/// Throws EnvError if the current device cannot run the clusters of this launch. It must not choose another kernel
/// instead, because that would add in another order than the other ranks and runs.
template <class Kernel>
void require_clusters(Kernel* kernel, const ClusterLaunch& launch, int blocks) {
  if (blocks == 1) return;
  int count = 0;
  const cudaError_t status = cudaOccupancyMaxActiveClusters(&count, kernel, &launch.config);
  if (status == cudaSuccess && count > 0) return;
  cudaGetLastError();
  throw EnvError("this GPU runs no cluster of " + std::to_string(blocks) + " blocks" +
                 (status == cudaSuccess ? "" : std::string(" (") + cudaGetErrorName(status) + ")") +
                 ", which matrix products of this job need; set TRAINCTL_SMALL_STEP=off for all ranks");
}

/// A barrier of all threads of the cluster, split in two so that work can go between. It orders only what
/// publish_barriers() published before the arrival.
__device__ inline void arrive_at_cluster() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}
__device__ inline void wait_for_arrivals() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

}  // namespace trainctl::cuda
