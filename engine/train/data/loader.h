// Prepares the next steps' batches with a pool of workers while the current step trains.
//
// The rows of a batch are numbered over all ranks together: micro-batch m has the rows [m * n, (m + 1) * n), where n =
// batch / micro_batches. A rank's `load` instructions say which part of these rows (and of the other dims) the rank
// takes. For bf16 loads the workers round the set's f32 values. For a tensor whose samples are all kept on the device
// they write sample numbers instead of data.
//
//   batches      |  taken  |  taken  |  full  |  filling  |  open next
//                 released_            taken_            opened_
//
// Workers claim rows of the batch that was opened last, in order, so a slow sample delays only its own batch.
// Batches are handed over in order. What is in a batch does not depend on the number of workers.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "engine/base/error.h"
#include "engine/compile/program.h"
#include "engine/planning/device_data.h"
#include "engine/runtime/executor.h"
#include "engine/train/data/batch_layout.h"
#include "engine/train/data/dataset.h"
#include "engine/train/data/drawn_batches.h"
#include "engine/train/data/load_tuner.h"

namespace trainctl {

struct LoaderOptions {
  int64_t first_step = 0;  ///< over the whole run
  int64_t num_steps = 0;   ///< in total
  /// Asynchronous workers: the step whose batch is read next, in place of first_step, first_step + 1, …; or kNoneNow or
  /// kEnd of BatchBoard. One worker at a time calls it.
  std::function<int64_t()> claim;
  int micro_batches = 1;
  int replica = 0, replicas = 1;  ///< BatchLayoutOptions
  bool full_batch = false;        ///< read every row of a micro-batch, then slice, instead of only this rank's rows
  std::optional<int64_t> ignored_label;  ///< the loss's ignore_index
  /// For an evaluation: rows that only fill up a batch have this value as their i32 label, or nan as their f32 label.
  std::optional<int32_t> no_label;
  std::vector<std::string> labels = {"label"};       ///< the sample fields that are labels
  int batches_in_use = 1;                            ///< limit of batches taken and not yet released
  std::function<HostBlock(int64_t bytes)> allocate;  ///< allocates them (Executor::allocate_inputs); empty: heap
  const InputLayout* layout = nullptr;               ///< their layout (Executor::inputs); null: input_layout(program)
  int most_workers = 1;                              ///< most workers that dataset.autotune may choose
  /// Called by next_step() after each change that dataset.autotune makes.
  std::function<void(int64_t step, const LoadTuner::Change&)> on_change;
  double timeout_seconds = 0;  ///< a sample that takes nine tenths of it to read is an error; 0: no limit
  /// Called with the error of such a sample. If it returns, or is empty, the error is thrown, and the destructor of the
  /// loader waits for the worker.
  std::function<void(const EnvError&)> on_hang;
};

/// The sample_tables and byte_tables (engine/planning/device_data.h) of an opened set. The sample tables also get
/// SampleTable::read.
std::vector<SampleTable> sample_tables(const Dataset& set, const Program& program);
std::vector<ByteTable> byte_tables(const Dataset& set, const Program& program);

struct LoadWaits {
  double seconds = 0;
  double share = 0;  ///< fraction of the time between the first batch and the last one
};

class Loader {
 public:
  Loader(std::unique_ptr<Dataset> set, const DatasetSpec& spec, const Program& program, uint64_t seed,
         const LoaderOptions& options);
  /// Stops the workers once they have read the rows that they have claimed, or calls on_hang.
  ~Loader();

  int64_t steps_per_epoch() const { return drawn_.order().steps_per_epoch(); }
  /// Waits for the next step's batch and returns it: a block with the layout input_layout(program), valid until it is
  /// released. Rethrows the error that stopped a worker; if several samples of a batch have errors, the error of the
  /// first. Returns null once LoaderOptions::claim has said that there are no more batches.
  const std::byte* next_step();
  /// The batch that next_step would return next without waiting; nothing if that batch is not read yet, or there is
  /// none. The block does not change until it is released.
  struct Ahead {
    const std::byte* inputs = nullptr;
    int64_t step = 0;
  };
  std::optional<Ahead> look_ahead();
  /// The step of the batch that next_step returned last.
  int64_t taken_step() const { return batch_at(taken_ - 1).step; }
  /// StepScalars::label_weight of the batch that next_step returned last. It counts the labels of the whole batch, all
  /// of which every rank can read, so it is the same on all ranks and under any plan.
  float label_weight() const { return batch_at(taken_ - 1).label_weight; }
  /// label_weight() of the batch that release_step releases next.
  float oldest_label_weight() const { return batch_at(released_).label_weight; }
  /// For the batch that release_step releases next, if LoaderOptions::no_label is set: the number of labels that count,
  /// and the number of samples without those that only fill up the batch.
  int64_t oldest_labels() const { return batch_at(released_).labels; }
  int64_t oldest_samples() const { return batch_at(released_).own_rows; }
  /// Describes the first sample of the batch that release_step releases next that has a value which is not finite, or
  /// whose square is not: "data of train.csv:17 is nan". Returns "" if there is none. Reads the samples of all ranks
  /// again.
  std::string extreme_sample() const;
  /// Releases the oldest batch that was taken. The batch may then be overwritten.
  void release_step();
  /// The current number of workers, and of batches that they may read ahead.
  LoadSetting setting() const { return setting_; }
  /// The time that next_step has waited since the first batch.
  LoadWaits waits() const;
  /// The seconds of the workers by stage, over all batches so far, and the samples that dataset.on_error has skipped.
  StageSeconds seconds() const;
  SkippedSamples skipped() const { return set_->skipped(); }

 private:
  using Clock = std::chrono::steady_clock;

  struct Buffer {
    HostBlock block;
    std::vector<std::byte> staging;
    std::vector<int64_t> samples;  ///< samples of the whole batch; passes: one for each of them
    std::vector<uint64_t> passes;
  };
  struct Batch : Buffer {
    int64_t step = 0;  ///< over the whole run
    std::optional<BatchMixing::Drawn> mix;
    int64_t own_rows = 0;  ///< rows that do not just fill it up
    int64_t unread = 0;    ///< rows of BatchLayout::rows() that are not read yet
    bool is_full = false;
    float label_weight = 1.0f;
    int64_t labels = 0;
    std::exception_ptr error;
    int64_t error_row = 0;
  };
  /// The sample that a worker is reading.
  struct Reading {
    std::atomic<int64_t> sample = -1;  ///< -1: none
    std::atomic<Clock::rep> since = 0;

    void begin(int64_t number) {
      since = Clock::now().time_since_epoch().count();
      sample = number;
    }
  };

  Batch& batch_at(int64_t number) { return batches_[static_cast<size_t>(number) % batches_.size()]; }
  const Batch& batch_at(int64_t number) const { return batches_[static_cast<size_t>(number) % batches_.size()]; }

  Buffer make_buffer() const;
  void apply(LoadSetting setting);
  bool start_worker();
  void work(int worker, BatchLayout::Scratch& scratch);
  bool may_claim() const { return opened_ > 0 && next_row_ < num_rows(); }
  bool may_open() const;
  int64_t num_rows() const { return static_cast<int64_t>(layout_.rows().size()); }
  int64_t claim_step(std::unique_lock<std::mutex>& lock);
  void open_batch(std::unique_lock<std::mutex>& lock, BatchLayout::Scratch& scratch, Reading& reading);
  void expect_samples(std::span<const int64_t> samples, Reading& reading) const;
  void request_ahead(Reading& reading);
  void read_rows(std::unique_lock<std::mutex>& lock, BatchLayout::Scratch& scratch, Reading& reading);
  /// The error of a sample that has been read for longer than timeout_seconds, if there is one.
  std::optional<EnvError> hanging() const;
  void finish_batch(Batch& batch, BatchLayout::Scratch& scratch);
  int64_t count_labels(const Batch& batch, BatchLayout::Scratch& scratch) const;
  void tune(double waited);
  const SampleField& label() const;

  std::unique_ptr<Dataset> set_;
  DrawnBatches drawn_;  ///< used by the worker that opens a batch
  std::optional<BatchMixing> mixing_;
  LoaderOptions options_;
  uint64_t seed_;
  BatchLayout layout_;
  int64_t block_bytes_ = 0;
  int64_t claimed_rows_ = 1;  ///< at a time

  mutable std::mutex mutex_;
  std::condition_variable work_;   ///< Signalled when a worker may have work.
  std::condition_variable full_;   ///< Signalled when a batch is complete.
  std::condition_variable ended_;  ///< Signalled when a thread has ended.
  std::vector<Batch> batches_;     ///< batch i is at i % size
  std::vector<Buffer> free_;       ///< buffers that belong to no batch
  int buffers_ = 0;                ///< buffers allocated so far
  int64_t opened_ = 0;             ///< batches whose rows may be or have been claimed
  int64_t next_row_ = 0;           ///< in the batch opened last: the first unclaimed row
  bool is_opening_ = false;        ///< a worker uses drawn_
  int64_t taken_ = 0;              ///< batches taken by the trainer so far
  int64_t released_ = 0;           ///< batches released by the trainer so far, out of those taken
  bool stop_ = false;
  bool has_ended_ = false;   ///< LoaderOptions::claim has reported the end: no more batches are opened
  bool has_failed_ = false;  ///< a worker has failed: no further batch is opened
  double busy_ = 0;          ///< seconds in which workers were busy since the tuner looked
  StageSeconds seconds_;     ///< seconds of all workers
  StageSeconds seen_;        ///< seconds that the tuner has seen
  int running_ = 0;          ///< number of running threads
  std::vector<std::unique_ptr<Reading>> readings_;  ///< by thread of threads_
  LoadSetting setting_;
  std::optional<LoadTuner> tuner_;
  std::optional<Clock::time_point> last_step_;  ///< when next_step returned
  Clock::time_point first_taken_, last_taken_;
  double waited_ = 0;  ///< seconds, after the first batch
  std::vector<std::thread> threads_;
};

}  // namespace trainctl
