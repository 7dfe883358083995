// Walks a Program on one rank's device; decides nothing.
#pragma once

#include <functional>
#include <memory>
#include <span>

#include "engine/compile/program.h"
#include "engine/ops/kernel.h"
#include "engine/runtime/communicator.h"

namespace trainctl {

/// Gives the executor what one `load` instruction of its program asks for: the part of a data set tensor
/// that its output says, contiguous. The pointer must stay good until the next step starts.
class InputSource {
 public:
  virtual ~InputSource() = default;
  virtual const void* input(const Instruction& load) = 0;
};

/// Gets the tensors of `print:`.
using PrintSink = std::function<void(const Operand& operand, const void* data, int micro_batch)>;

struct ExecutorOptions {
  uint64_t seed = 0;
  int threads = 1;
  PrintSink print;
  /// Called with each collective, send and recv as it is issued (for tests and `run --record`).
  std::function<void(const Instruction&)> on_communication;
};

class Executor {
 public:
  virtual ~Executor() = default;
  /// Runs one step. Allocates nothing. Throws CommError (with this instruction's name) on a timeout.
  virtual void run_step(InputSource& inputs, const StepScalars& scalars) = 0;
  virtual float loss() = 0;  ///< of the last step; programs with a loss only
  /// Copies between the arena and host memory; offsets are the program's.
  virtual void read(int64_t offset, void* to, int64_t bytes) = 0;
  virtual void write(int64_t offset, const void* from, int64_t bytes) = 0;
};

/// Allocates the arena (inside `arena` when given: shared memory of program.arena_bytes, 64-byte
/// aligned, zeroed), prepares all kernels, opens all groups and fills in the initial weights.
/// `program` and `comm` must outlive it.
std::unique_ptr<Executor> make_cpu_executor(const Program& program, Communicator& comm, const ExecutorOptions& options,
                                            std::span<std::byte> arena = {});

}  // namespace trainctl
