// Prepares the next step's batch in a separate thread while the current step trains.
//
// The batch is ordered over all ranks together: micro-batch m is its rows [m * n, (m + 1) * n), n = batch /
// micro_batches. A rank's `load` instructions say which part of those rows (and of the other dims) it takes. For bf16
// loads the thread rounds the set's f32. For a tensor that the device keeps whole it writes sample numbers instead of
// data.
#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "engine/compile/program.h"
#include "engine/runtime/executor.h"
#include "engine/train/data/dataset.h"
#include "engine/train/data/order.h"

namespace trainctl {

struct LoaderOptions {
  int64_t first_step = 0;  ///< over the whole run
  int64_t num_steps = 0;   ///< in total
  int micro_batches = 1;
  bool full_batch = false;  ///< read every row of a micro-batch, then slice, instead of only this rank's rows
  std::optional<int64_t> ignored_label;              ///< the loss's ignore_index
  /// For an evaluation: what fills up a batch has this i32 as its labels, or nan.
  std::optional<int32_t> no_label;
  int held = 1;                                      ///< batches that may be taken and not yet released
  std::function<HostBlock(int64_t bytes)> allocate;  ///< allocates them (Executor::allocate_inputs); empty: heap
  const InputLayout* layout = nullptr;               ///< their layout (Executor::inputs); null: input_layout(program)
};

/// The tensors that the program loads, of a set of `samples` samples, as a device could keep them; without `read`.
std::vector<SampleTable> sample_tables(const DataShapes& shapes, int64_t samples, const Program& program);
/// The same for an opened set, with `read`.
std::vector<SampleTable> sample_tables(Dataset& set, const Program& program);

/// Whether a device should keep these tables: no more than a host keeps, so that start-up stays short. Larger sets come
/// from the host, batch by batch.
bool small_enough_to_keep(const std::vector<SampleTable>& tables);

class Loader {
 public:
  Loader(std::unique_ptr<Dataset> set, const DatasetSpec& spec, const Program& program, uint64_t seed,
         const LoaderOptions& options);
  ~Loader();  ///< stops the thread, whatever it is doing

  int64_t steps_per_epoch() const { return order_.steps_per_epoch(); }
  /// Waits for the next step's batch and returns it: a block with the layout input_layout(program), valid
  /// until it is released. Rethrows what stopped the thread.
  const std::byte* next_step();
  /// StepScalars::label_weight of the batch that next_step returned last. It counts the labels of the whole batch, of
  /// which every rank can read all, so it is the same on all ranks, under any plan.
  float label_weight() const { return label_weights_[static_cast<size_t>(taken_ - 1) % label_weights_.size()]; }
  /// The same of the batch that release_step releases next.
  float oldest_label_weight() const { return label_weights_[static_cast<size_t>(released_) % label_weights_.size()]; }
  /// The labels that count of the batch that release_step releases next, where LoaderOptions::no_label is set; and its
  /// samples without those that fill it up.
  int64_t oldest_labels() const { return counts_[static_cast<size_t>(released_) % counts_.size()].labels; }
  int64_t oldest_samples() const { return counts_[static_cast<size_t>(released_) % counts_.size()].samples; }
  /// Releases the oldest batch taken: it may be overwritten.
  void release_step();

 private:
  /// One `load` (or several of the same data), and how to fill it from the set's samples.
  struct Part {
    const Instruction* load = nullptr;
    int64_t offset = 0;  ///< in the block
    DataTensor which = DataTensor::data;
    int micro_batch = 0;
    int64_t sample_elements = 1;
    int64_t batch_row = 0;            ///< row of the batch where the operand's whole tensor begins
    int64_t first_row = 0, rows = 0;  ///< to read, in the operand's whole tensor
    bool by_number = false;           ///< write sample numbers: the device keeps the samples
    bool direct = false;              ///< copy the rows as they are, without slicing or rounding
  };

  Part make_part(const Instruction& load, bool by_number, const DatasetSpec& spec) const;
  void load_steps();
  void fill(size_t block, int64_t step);
  int64_t count_labels(std::span<const int64_t> samples);
  void fill_labels(const Part& part, int64_t own_rows, std::byte* rows) const;
  void fill_part(const Part& part, std::span<const int64_t> samples, int64_t own_rows, std::byte* out);

  std::unique_ptr<Dataset> set_;
  SampleOrder order_;
  LoaderOptions options_;
  std::vector<Part> parts_;
  std::vector<int32_t> labels_;  ///< the thread's scratch: the labels of one sample
  std::vector<std::byte> rows_;  ///< the thread's scratch: whole rows, before slicing

  // Batch i is in blocks_[i % size]: while the trainer holds some, the thread fills another.
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<HostBlock> blocks_;
  std::vector<float> label_weights_;  ///< of the batches in blocks_
  struct Counts {
    int64_t samples = 0, labels = 0;
  };
  std::vector<Counts> counts_;  ///< of the batches in blocks_
  int64_t filled_ = 0;                ///< by the thread so far
  int64_t taken_ = 0;                 ///< by the trainer so far
  int64_t released_ = 0;              ///< by the trainer so far, of those taken
  bool stop_ = false;
  std::exception_ptr error_;
  std::thread thread_;
};

}  // namespace trainctl
