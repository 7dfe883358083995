// Chooses the tile size of tensor_tile_cuda.cuh for a grid, and how many blocks split k: the choice that is expected to
// take the fewest cycles. It depends on sizes and on the model of the GPU alone, because it decides in which order a
// product is added.
#pragma once

#include <algorithm>
#include <limits>

#include "engine/ops/small_step/clusters_at_once.h"
#include "engine/ops/small_step/tensor_tile_cuda.cuh"

namespace trainctl::cuda {
namespace {

struct TileChoice {
  int blocks = 1;  ///< blocks per cluster
  double cycles = std::numeric_limits<double>::infinity();
};

inline int device_attribute(cudaDeviceAttr attribute) {
  int device = 0, value = 0;
  cuda_check(cudaGetDevice(&device), "cudaGetDevice");
  cuda_check(cudaDeviceGetAttribute(&value, attribute, device), "cudaDeviceGetAttribute");
  return value;
}

/// Bytes of shared memory to launch with; 0: the device has less than needed. A grid of at most one block a
/// multiprocessor asks for more than half of a multiprocessor's: otherwise blocks that start while the preceding kernel
/// still runs would share the multiprocessors that are free, and take twice as long as the others.
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

/// For `tiles` tiles over k in one grid with `others` small blocks. The clusters of a choice are expected to run at
/// once.
template <class Size, class Kernel>
TileChoice choose_blocks(Kernel* kernel, int needed, int64_t tiles, int64_t others, int64_t k) {
  // Rates of a multiprocessor, fitted to an H200's times for tiles of 64 x 80 and 32 x 64 at k of 512 and 784.
  constexpr double kMmaOfCycle = 620, kBytesOfCycle = 14, kSentOfCycle = 6;
  constexpr double kAround = 2400;  // cycles outside the loop: start, first bytes, end
  constexpr int64_t kLeast = 32;    // least k of a block
  constexpr double kOfK =
      std::max(3.0 * Size::kM * Size::kN / kMmaOfCycle, 4.0 * (Size::kM + Size::kN) / kBytesOfCycle);
  TileChoice best;
  for (int blocks = 1; blocks <= kMostBlocks; blocks *= 2) {
    const int64_t grid = tiles * blocks + others, waves = ceil_div(grid, multiprocessors());
    const int bytes = shared_bytes(kernel, needed, grid);
    if (bytes == 0) break;
    if (blocks > 1) {
      if (tiles == 0 || waves > 1 || k / blocks < kLeast || !built_for_hopper()) break;
      if (clusters_at_once(multiprocessors(), blocks) < tiles + ceil_div(others, blocks)) break;
    }
    const double sent = 4.0 * Size::kM * Size::kN * (blocks - 1) / blocks;  // bytes of sums sent to other blocks
    const double cycles = static_cast<double>(waves) * (share_of(k, blocks) * kOfK + kAround + sent / kSentOfCycle);
    if (cycles < best.cycles) best = {blocks, cycles};
  }
  return best;
}

}  // namespace
}  // namespace trainctl::cuda
