// Determines the samples of a step from (seed, epoch, step), so all ranks agree without communication.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/planning/mixture.h"
#include "engine/planning/run_length.h"
#include "engine/spec/job_spec.h"
#include "engine/train/data/block_order.h"
#include "engine/train/data/dataset.h"
#include "engine/train/data/permutation.h"

namespace trainctl {

/// Fisher-Yates over 0 … order.size() - 1, driven by the stream (seed, "dataset.shuffle") at `pass`.
void shuffled_order(uint64_t seed, uint64_t pass, std::span<int64_t> order);

/// Up to this size the order of a shuffled set is a list with 8 bytes per sample in every rank. The order of larger
/// sets is a KeyedPermutation of (seed, "dataset.order", pass), which needs no memory and no time to start anywhere.
inline constexpr int64_t kMostListedSamples = 50'000'000;

/// Describes everything that determines the order of the samples in an epoch, as a clause: "24 samples, shuffled by
/// seed 1". Two jobs with the same text go through an epoch in the same order, whatever their batch.
std::string order_text(const DatasetSpec& spec, int64_t set_size, uint64_t seed);
/// The same for any data set. For a mixture, it lists how many samples each source has contributed in the first `step`
/// steps. Two jobs with the same text continue each source at the same sample.
std::string order_text(const DatasetSpec& spec, const DataHeader& data, uint64_t seed, int64_t step);

/// The order of the samples of one set in each pass over it.
class PassOrder {
 public:
  /// `lengths`: Dataset::lengths(), if the job has a curriculum.
  PassOrder(const DatasetSpec& spec, int64_t size, uint64_t seed, std::vector<int32_t> lengths = {});
  int64_t size() const { return size_; }
  /// The sample at place `within` a pass.
  int64_t at(uint64_t pass, int64_t within);

 private:
  void start(uint64_t pass);
  void order_by_length(uint64_t pass);

  int64_t size_;
  bool shuffle_;
  int64_t block_;  ///< dataset.shuffle_block
  uint64_t curriculum_passes_;
  double noise_;
  uint64_t seed_;
  std::vector<int32_t> lengths_;
  uint64_t pass_ = 0;  ///< pass, counted over the whole run, whose order is in order_
  bool has_order_ = false;
  std::vector<int64_t> order_;                   ///< order of one pass, if the job shuffles a small set
  std::optional<KeyedPermutation> permutation_;  ///< order of one pass, if it shuffles a large one
  std::optional<BlockOrder> blocks_;             ///< order of one pass, if it shuffles in blocks
};

/// An epoch is `repeat` passes over the set, each in its own order if the job shuffles (a BlockOrder with
/// dataset.shuffle_block), cut into batches. A last incomplete batch is dropped, or (drop_last: false) filled up with
/// the first samples of the epoch.
///
/// The steps of a mixture draw from its sources by Mixture::counts(). Each source has a PassOrder of its own, keyed by
/// its name, and each step continues where the previous one ended. The rows of a batch are shuffled over the sources.
class SampleOrder {
 public:
  /// Throws SpecError if the set has less than one batch of samples.
  SampleOrder(const DatasetSpec& spec, int64_t set_size, uint64_t seed);
  /// The same for an opened set, which may be a mixture or have a curriculum.
  SampleOrder(const DatasetSpec& spec, const Dataset& set, uint64_t seed);

  int64_t steps_per_epoch() const { return steps_; }
  int64_t batch_size() const { return static_cast<int64_t>(batch_.size()); }
  /// Number of real rows in a step's batch. They come first; the rest are padding that repeats samples.
  int64_t own_rows(int64_t step) const {
    if (mixture_) return static_cast<int64_t>(batch_.size());
    return std::min(static_cast<int64_t>(batch_.size()), samples_ - step * static_cast<int64_t>(batch_.size()));
  }
  /// The samples of one step, in the order of the batch; valid until the next call. Steps count from 0. Allocates
  /// no memory, unless the set is a mixture.
  std::span<const int64_t> batch(int64_t epoch, int64_t step);
  /// For each row of the last batch(), the number of its pass over the set, counted over the whole run.
  std::span<const uint64_t> passes() const { return passes_; }
  /// For each row of the last batch() of a mixture: the number of its source. Empty if the set is no mixture.
  std::span<const int32_t> row_sources() const { return row_sources_; }

 private:
  SampleOrder(const DatasetSpec& spec, int64_t set_size, uint64_t seed, std::vector<PassOrder> orders);
  void draw(int64_t step);

  int64_t size_, repeat_, samples_, steps_ = 0;  ///< samples_: samples per epoch, over all passes
  std::vector<PassOrder> orders_;                ///< one per source
  std::optional<Mixture> mixture_;
  uint64_t row_key_ = 0;
  std::vector<int32_t> row_sources_;
  std::vector<int64_t> next_;  ///< per source: the samples drawn so far
  std::vector<int64_t> batch_;
  std::vector<uint64_t> passes_;  ///< passes of the rows of batch_
};

}  // namespace trainctl
