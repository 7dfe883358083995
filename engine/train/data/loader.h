// Prepares the next step's batch on a thread of its own while the current one trains.
//
// The order of the whole batch is that of all ranks together: micro-batch m is rows
// [m * n, (m + 1) * n) of it, n = batch / micro_batches, and a rank's `load` instructions say which part
// of those rows (and of the other dims) it takes. In hybrid_parallel they state what one rank holds: the
// ranks of a stage divide the rows in their order, or with full_batch each holds all of them.
#pragma once

#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "engine/compile/program.h"
#include "engine/runtime/executor.h"
#include "engine/train/data/dataset.h"
#include "engine/train/data/order.h"

namespace trainctl {

struct LoaderOptions {
  int64_t first_step = 0;  ///< over the whole run
  int64_t num_steps = 0;   ///< to load in all
  int micro_batches = 1;
  bool full_batch = false;  ///< read every row of a micro-batch and slice, instead of just this rank's
};

class Loader final : public InputSource {
 public:
  Loader(std::unique_ptr<Dataset> set, const DatasetSpec& spec, const Program& program, uint64_t seed,
         const LoaderOptions& options);
  ~Loader() override;  ///< stops the thread, whatever it is at

  int64_t steps_per_epoch() const { return order_.steps_per_epoch(); }
  /// Waits until the next step's batch is there; input() then gives it. Throws what stopped the thread.
  void next_step();
  /// `load` is an instruction of the program that the loader was made for.
  const void* input(const Instruction& load) override;

 private:
  /// One `load` (or several alike), and how to make it from the set's samples.
  struct Part {
    const Instruction* load = nullptr;
    DataTensor which = DataTensor::data;
    int micro_batch = 0;
    int64_t sample_elements = 1;
    int64_t batch_row = 0;            ///< of the first row of the operand's whole tensor
    int64_t first_row = 0, rows = 0;  ///< to read, in the operand's whole tensor
    bool direct = false;              ///< the part is those rows, nothing is cut out of them
  };
  using Batch = std::vector<std::vector<std::byte>>;  ///< one buffer a part

  Part make_part(const Instruction& load, const DatasetSpec& spec, int rank_in_stage) const;
  void load_steps();
  void fill(Batch& batch, int64_t step);
  void fill_part(const Part& part, std::span<const int64_t> samples, std::byte* out);

  std::unique_ptr<Dataset> set_;
  SampleOrder order_;
  LoaderOptions options_;
  std::vector<Part> parts_;
  std::vector<std::pair<const Instruction*, size_t>> part_of_;  ///< index into parts_
  std::vector<std::byte> rows_;                                 ///< scratch of the thread: whole rows, before slicing

  // Batch i is in batches_[i % 2]: while the trainer has one the thread fills the other.
  std::mutex mutex_;
  std::condition_variable changed_;
  Batch batches_[2];
  int64_t filled_ = 0;  ///< by the thread so far
  int64_t taken_ = 0;   ///< by the trainer so far; the last of them is in use
  bool stop_ = false;
  std::exception_ptr error_;
  std::thread thread_;
};

}  // namespace trainctl
