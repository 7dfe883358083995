// The samples of the steps of a run, in order. If the data are in an object store, the samples of later steps are drawn
// and requested ahead, so that a request's latency does not delay a step:
//
//   batches   |  full  |  filling  |  drawn, requested  |  drawn, requested  |  not drawn
//                          step          ahead_
//
// Requested data is kept in the store's cache on the local disk, not in memory, so it may be many batches.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <vector>

#include "engine/train/data/dataset.h"
#include "engine/train/data/order.h"

namespace trainctl {

class DrawnBatches {
 public:
  /// Largest number of batches that are requested ahead. If a batch has few samples, many batches are needed to hide a
  /// latency.
  static constexpr size_t kMostBatches = 64;
  static constexpr int64_t kMostSamples = 16384;

  /// `end`: the step after the last one.
  DrawnBatches(const DatasetSpec& spec, const Dataset& set, uint64_t seed, int64_t end);

  const SampleOrder& order() const { return order_; }
  /// Returns the samples of a step, and for each sample its pass over the set. Steps may come in any order, but samples
  /// are drawn ahead only for consecutive steps.
  void take(int64_t step, std::span<int64_t> samples, std::span<uint64_t> passes);
  /// Calls request(samples) once for each step after the last one that was taken, until enough is requested or the call
  /// returns false. Does nothing if no path is in a store.
  void request_ahead(const std::function<bool(std::span<const int64_t> samples)>& request);

 private:
  struct Drawn {
    int64_t step = 0;
    std::vector<int64_t> samples;
    std::vector<uint64_t> passes;
    int64_t blocks = 0;  ///< blocks of objects that were requested for it
  };

  bool has_room() const;

  SampleOrder order_;
  int64_t end_;
  bool is_remote_;
  int64_t taken_ = -1;       ///< the step that was taken last
  std::deque<Drawn> ahead_;  ///< the steps after it
  int64_t blocks_ = 0;       ///< blocks in ahead_
};

}  // namespace trainctl
