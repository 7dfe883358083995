// Prepares the next step's batch on a thread of its own while the current one trains.
//
// The order of the whole batch is that of all ranks together: micro-batch m is rows
// [m * n, (m + 1) * n) of it, n = batch / micro_batches, and a rank's `load` instructions say which part
// of those rows (and of the other dims) it takes. In hybrid_parallel they state what one rank holds: the
// ranks of a stage divide the rows in their order, or with full_batch each holds all of them. Where they take
// bf16 the thread rounds the set's f32. Where the device keeps all samples it writes their numbers.
#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
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
  int64_t num_steps = 0;   ///< to load in all
  int micro_batches = 1;
  bool full_batch = false;  ///< read every row of a micro-batch and slice, instead of just this rank's
  int held = 1;             ///< batches that may be taken and not yet released
  std::function<HostBlock(int64_t bytes)> allocate;  ///< their memory (Executor::allocate_inputs); empty: the heap's
  const InputLayout* layout = nullptr;               ///< of the batches (Executor::inputs); null: input_layout(program)
};

/// The tensors of a set of so many samples that the program loads, as a device could keep them; without `read`.
std::vector<SampleTable> sample_tables(const DataShapes& shapes, int64_t samples, const Program& program);
/// Those of the set. Reads from it.
std::vector<SampleTable> sample_tables(Dataset& set, const Program& program);

class Loader {
 public:
  Loader(std::unique_ptr<Dataset> set, const DatasetSpec& spec, const Program& program, uint64_t seed,
         const LoaderOptions& options);
  ~Loader();  ///< stops the thread, whatever it is at

  int64_t steps_per_epoch() const { return order_.steps_per_epoch(); }
  /// Waits until the next step's batch is there, and gives it: a block as input_layout(program) says, good
  /// until it is released. Throws what stopped the thread.
  const std::byte* next_step();
  /// The oldest batch taken may be overwritten.
  void release_step();

 private:
  /// One `load` (or several alike), and how to make it from the set's samples.
  struct Part {
    const Instruction* load = nullptr;
    int64_t offset = 0;  ///< in the block
    DataTensor which = DataTensor::data;
    int micro_batch = 0;
    int64_t sample_elements = 1;
    int64_t batch_row = 0;            ///< of the first row of the operand's whole tensor
    int64_t first_row = 0, rows = 0;  ///< to read, in the operand's whole tensor
    bool by_number = false;           ///< the device has the samples
    bool direct = false;              ///< the part is those rows as they are: nothing is cut out of them or rounded
  };

  Part make_part(const Instruction& load, bool by_number, const DatasetSpec& spec, int rank_in_stage) const;
  void load_steps();
  void fill(std::byte* block, int64_t step);
  void fill_part(const Part& part, std::span<const int64_t> samples, std::byte* out);

  std::unique_ptr<Dataset> set_;
  SampleOrder order_;
  LoaderOptions options_;
  std::vector<Part> parts_;
  std::vector<std::byte> rows_;  ///< scratch of the thread: whole rows, before slicing

  // Batch i is in blocks_[i % size]: while the trainer holds some the thread fills another.
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<HostBlock> blocks_;
  int64_t filled_ = 0;    ///< by the thread so far
  int64_t taken_ = 0;     ///< by the trainer so far
  int64_t released_ = 0;  ///< of those taken
  bool stop_ = false;
  std::exception_ptr error_;
  std::thread thread_;
};

}  // namespace trainctl
