// Decides when a batch may start. The contract of `staleness: s`, with N workers:
//
//   round(b) = b / N                a batch starts only when round(b) <= round(oldest batch that is not applied) + s
//
// The weights that a worker pulls therefore lack at most the updates of the batches in these rounds. The oldest batch
// may always start, so some worker can always continue. Each server applies this rule to the batches that it has
// applied itself.
#pragma once

#include <cstdint>
#include <set>

namespace trainctl::servers {

class Applied {
 public:
  Applied(int64_t first, int64_t end) : oldest_(first), end_(end) {}

  /// Counts a batch as applied. Returns false if it was counted before, since several workers may run the same batch.
  bool add(int64_t batch) {
    if (batch < oldest_ || !later_.insert(batch).second) return false;
    while (!later_.empty() && *later_.begin() == oldest_) {
      later_.erase(later_.begin());
      ++oldest_;
    }
    return true;
  }
  /// Batches before this one that are not applied.
  int64_t missing_before(int64_t batch) const {
    int64_t missing = batch - oldest_;
    for (auto later = later_.begin(); later != later_.end() && *later < batch; ++later) --missing;
    return missing < 0 ? 0 : missing;
  }
  /// The first batch that is not applied.
  int64_t oldest() const { return oldest_; }
  bool is_complete() const { return oldest_ >= end_; }

 private:
  int64_t oldest_;
  int64_t end_;
  std::set<int64_t> later_;
};

}  // namespace trainctl::servers
