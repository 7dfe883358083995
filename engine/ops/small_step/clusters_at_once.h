// The number of clusters of blocks that a choice of kernels may assume to run at once.
#pragma once

#include <cstdint>

namespace trainctl::cuda {

/// Clusters of `blocks` blocks, with one block per multiprocessor. The number depends on nothing but the model of the
/// GPU: kernels add in another order if more blocks share a sum, so cards of one model, processes and ranks must choose
/// the same number of blocks. The driver's own count (cudaOccupancyMaxActiveClusters) also depends on which
/// multiprocessors of a card are disabled. A cluster runs within a group of 16 or 18 multiprocessors, of which 16 hold
/// whole clusters of every size. If a card runs fewer clusters at once, the others run after them.
constexpr int64_t clusters_at_once(int64_t multiprocessors, int64_t blocks) {
  constexpr int64_t kOfGroup = 16;
  const int64_t in_groups = multiprocessors < kOfGroup ? multiprocessors : multiprocessors / kOfGroup * kOfGroup;
  return in_groups / blocks;
}

}  // namespace trainctl::cuda
