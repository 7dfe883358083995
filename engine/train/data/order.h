// Which samples a step trains on. Depends on (seed, epoch, step) alone, so all ranks agree without communication.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/planning/run_length.h"
#include "engine/spec/job_spec.h"
#include "engine/train/data/block_order.h"
#include "engine/train/data/permutation.h"

namespace trainctl {

/// Fisher-Yates over 0 … order.size() - 1, driven by the stream (seed, "dataset.shuffle") at `pass`.
void shuffled_order(uint64_t seed, uint64_t pass, std::span<int64_t> order);

/// Up to here a shuffled set is a list, of 8 bytes a sample in every rank. The order of larger sets is a
/// KeyedPermutation of (seed, "dataset.order", pass), which needs no memory and no time to start anywhere.
inline constexpr int64_t kMostListedSamples = 50'000'000;

/// All that decides which sample is at which place of an epoch, as a clause: "24 samples, shuffled by seed 1". Two jobs
/// with the same text go through an epoch in the same order, whatever their batch.
std::string order_text(const DatasetSpec& spec, int64_t set_size, uint64_t seed);

/// An epoch is `repeat` passes over the set, each in its own order if the job shuffles (a BlockOrder with
/// dataset.shuffle_block), cut into batches. A last incomplete batch is dropped, or (drop_last: false) filled up with
/// the first samples of the epoch.
class SampleOrder {
 public:
  /// Throws SpecError if the set has less than one batch of samples.
  SampleOrder(const DatasetSpec& spec, int64_t set_size, uint64_t seed);

  int64_t steps_per_epoch() const { return steps_; }
  int64_t batch_size() const { return static_cast<int64_t>(batch_.size()); }
  /// Number of rows of a step's batch that are not there to fill it up: they come first.
  int64_t own_rows(int64_t step) const {
    return std::min(static_cast<int64_t>(batch_.size()), samples_ - step * static_cast<int64_t>(batch_.size()));
  }
  /// The samples of one step, in the order of the batch; valid until the next call. Steps count from 0. Allocates
  /// nothing.
  std::span<const int64_t> batch(int64_t epoch, int64_t step);
  /// For each row of the last batch(): the pass over the set, counted over the whole run.
  std::span<const uint64_t> passes() const { return passes_; }

 private:
  void start(uint64_t pass);
  /// The sample at place `within` a pass.
  int64_t sample_at(uint64_t pass, int64_t within);

  int64_t size_, repeat_, samples_, steps_ = 0;  ///< samples_: of an epoch, over all passes
  bool shuffle_;
  int64_t block_;  ///< dataset.shuffle_block
  uint64_t seed_;
  uint64_t pass_ = 0;  ///< pass, counted over the whole run, whose order is in order_
  bool has_order_ = false;
  std::vector<int64_t> order_;                   ///< order of one pass, if the job shuffles a small set
  std::optional<KeyedPermutation> permutation_;  ///< order of one pass, if it shuffles a large one
  std::optional<BlockOrder> blocks_;             ///< order of one pass, if it shuffles in blocks
  std::vector<int64_t> batch_;
  std::vector<uint64_t> passes_;  ///< passes of the rows of batch_
};

}  // namespace trainctl
