// Which samples a step trains on. Depends on (seed, epoch, step) alone, so all ranks agree without communication.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/spec/job_spec.h"

namespace trainctl {

/// Fisher-Yates over 0 … order.size() - 1, driven by the stream (seed, "dataset.shuffle") at `pass`.
void shuffled_order(uint64_t seed, uint64_t pass, std::span<int64_t> order);

/// SpecError (dataset.batch) if an epoch over `set_size` samples is shorter than one step.
void check_epoch_has_steps(const DatasetSpec& spec, int64_t set_size);

/// An epoch is `repeat` passes over the set, each in its own order if the job shuffles, cut into
/// batches. A last incomplete batch is dropped, or (drop_last: false) filled up with the first
/// samples of the epoch.
class SampleOrder {
 public:
  /// Throws SpecError if the set has less than one batch of samples.
  SampleOrder(const DatasetSpec& spec, int64_t set_size, uint64_t seed);

  int64_t steps_per_epoch() const { return steps_; }
  /// The samples of one step, in the order of the batch; valid until the next call. Steps count from 0.
  std::span<const int64_t> batch(int64_t epoch, int64_t step);

 private:
  void make_epoch(int64_t epoch);

  int64_t size_, batch_, repeat_, steps_ = 0;
  bool shuffle_;
  uint64_t seed_;
  int64_t epoch_ = -1;
  std::vector<int64_t> order_;  ///< of the current epoch, filled up to whole batches
};

}  // namespace trainctl
