// Which of the tiles of tensor_tile_cuda.cuh a grid is made of, and how many blocks share k: what is expected to take
// the fewest cycles.
#pragma once

#include <algorithm>
#include <limits>

#include "engine/ops/small_step/tensor_tile_cuda.cuh"

namespace trainctl::cuda {
namespace {

struct TileChoice {
  int blocks = 1;  ///< of a cluster
  double cycles = std::numeric_limits<double>::infinity();
};

inline int device_attribute(cudaDeviceAttr attribute) {
  int device = 0, value = 0;
  cuda_check(cudaGetDevice(&device), "cudaGetDevice");
  cuda_check(cudaDeviceGetAttribute(&value, attribute, device), "cudaDeviceGetAttribute");
  return value;
}

/// Shared memory to ask for. A grid of at most one block a multiprocessor asks for more than half of one's: else
/// blocks that are set up while the kernel before still runs go two to a multiprocessor that it left free, and take
/// twice as long there as all others. 0: the device has not so much.
template <class Kernel>
int shared_bytes(Kernel* kernel, int needed, int64_t blocks) {
  const int most = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  if (needed > most) return 0;
  const int half = device_attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor) / 2;
  const int more_than_half = std::max(needed, std::min(half + 1024, most));
  cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, more_than_half),
             "the shared memory of tiles");
  return blocks <= multiprocessors() ? more_than_half : needed;
}

/// For `tiles` over k in one grid, with `others` small blocks beside them. All clusters run at once.
template <class Size, class Kernel>
TileChoice choose_blocks(Kernel* kernel, int needed, int64_t tiles, int64_t others, int64_t k) {
  // Of a multiprocessor, fitted to what an H200 took for tiles of 64 x 80 and 32 x 64 at k of 512 and 784.
  constexpr double kMmaOfCycle = 620, kBytesOfCycle = 14, kSentOfCycle = 6;
  constexpr double kAround = 2400;  // cycles: start, first bytes, the end
  constexpr int64_t kLeast = 32;    // of k, for each block
  constexpr double kOfK =
      std::max(3.0 * Size::kM * Size::kN / kMmaOfCycle, 4.0 * (Size::kM + Size::kN) / kBytesOfCycle);
  TileChoice best;
  for (int blocks = 1; blocks <= kMostBlocks; blocks *= 2) {
    const int64_t grid = tiles * blocks + others, waves = ceil_div(grid, multiprocessors());
    const int bytes = shared_bytes(kernel, needed, grid);
    if (bytes == 0) break;
    if (blocks > 1) {
      if (tiles == 0 || waves > 1 || k / blocks < kLeast || !built_for_hopper()) break;
      const ClusterLaunch launch(dim3(static_cast<unsigned>(tiles * blocks)), Size::kThreads,
                                 static_cast<size_t>(bytes), blocks, nullptr);
      if (clusters_at_once(kernel, launch, blocks) < tiles + ceil_div(others, blocks)) break;
    }
    const double sent = 4.0 * Size::kM * Size::kN * (blocks - 1) / blocks;  // bytes of sums, to the rest of a cluster
    const double cycles =
        static_cast<double>(waves) * (share_of(k, blocks) * kOfK + kAround + sent / kSentOfCycle);
    if (cycles < best.cycles) best = {blocks, cycles};
  }
  return best;
}

}  // namespace
}  // namespace trainctl::cuda
