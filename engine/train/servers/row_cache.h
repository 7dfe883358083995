// Rows that a worker keeps in addition to its window: rows prefetched for the next batch and, for layers with
// cached_batches, rows of the last batches. A worker counts its own batches: 1, 2, …
//
//   row pulled for batch b        used in batches b … b + cached_batches without another pull
#pragma once

#include <cstdint>
#include <deque>
#include <unordered_map>
#include <vector>

namespace trainctl::servers {

class RowCache {
 public:
  /// `floats`: floats per row, over all tables of a field, one after another.
  RowCache(int64_t floats, int64_t cached_batches) : floats_(floats), cached_batches_(cached_batches) {}

  /// Returns null if batch `batch` may use no cached row of `id`. Valid until the next put or drop.
  const float* find(int32_t id, int64_t batch) const;
  /// Returns the destination of the values of a row pulled for `batch`. Batch numbers must not decrease.
  float* put(int32_t id, int64_t batch);
  /// Drops rows that neither this batch nor a later one may use. The rows of at most cached_batches + 1 batches remain.
  void drop_before(int64_t batch);

  int64_t cached_batches() const { return cached_batches_; }
  int64_t rows() const { return static_cast<int64_t>(places_.size()); }

 private:
  struct Place {
    int64_t slot = 0, pulled = 0;
  };
  struct Pull {
    int32_t id = 0;
    int64_t batch = 0;
  };

  const int64_t floats_, cached_batches_;
  std::unordered_map<int32_t, Place> places_;
  std::vector<float> values_;
  std::vector<int64_t> free_;
  std::deque<Pull> pulls_;  ///< the oldest first; a row that was pulled again is listed twice
};

}  // namespace trainctl::servers
