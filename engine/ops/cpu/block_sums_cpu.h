// Sums that have the same bits for any number of threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "engine/ops/cpu/threads_cpu.h"

namespace trainctl::cpu {

/// Sums over blocks of items. The blocks, and the order in which their sums are added, depend only on the sizes.
class BlockSums {
 public:
  /// `block`: items per block. `elements`: elements per item, which determine how many threads are worth waking.
  BlockSums(int threads, int64_t items, int64_t block, int64_t elements)
      : threads_(threads),
        items_(items),
        block_(block),
        elements_(elements),
        sums_(static_cast<size_t>((items + block - 1) / block)) {}

  /// Returns `start` plus f(first, count) of each block, whose items are first to first + count - 1. f must not throw.
  template <class F>
  double run(const F& f, double start = 0) {
    each_row(threads_, static_cast<int64_t>(sums_.size()), block_ * elements_,
             [&](int64_t i) { sums_[static_cast<size_t>(i)] = f(i * block_, std::min(block_, items_ - i * block_)); });
    return std::accumulate(sums_.begin(), sums_.end(), start);
  }

 private:
  int threads_;
  int64_t items_, block_, elements_;
  std::vector<double> sums_;
};

}  // namespace trainctl::cpu
