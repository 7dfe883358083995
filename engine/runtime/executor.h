// Walks a Program on one rank's device; decides nothing.
//
// Steps are started and finished apart, so that a device never waits for its host:
//
//   host    start 0   start 1   finish 0   start 2   finish 1  …
//   device  [   step 0   ][   step 1   ][   step 2   ]
//
// A CPU runs the whole step where it is started.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/base/start_up.h"
#include "engine/compile/program.h"
#include "engine/ops/kernel.h"
#include "engine/runtime/communicator.h"
#include "engine/runtime/input_layout.h"
#include "engine/runtime/timeline.h"

namespace trainctl {

/// Gets the tensors of `print:`.
using PrintSink = std::function<void(const Operand& operand, const void* data, int micro_batch)>;

/// An instruction that one step does not run, to see what the other ranks make of it.
struct LeftOut {
  uint32_t step = 0;     ///< StepScalars::step
  int instruction = -1;  ///< index into Program::instructions
};

struct ExecutorOptions {
  uint64_t seed = 0;
  int threads = 1;
  int in_flight = 2;  ///< steps wanted in flight at a time; a device may allow fewer
  PrintSink print;    ///< called by finish_step, or where the step runs on the host, by start_step
  /// Called with each collective, send and recv as it is issued (for tests and `run --record`). A program
  /// that was captured is issued once: with its first step.
  std::function<void(const Instruction&)> on_communication;
  /// What a device may keep whole where it has the room; read only while the executor is made.
  std::vector<SampleTable> tables;
  std::optional<LeftOut> left_out;   ///< for tests
  Timeline* timeline = nullptr;      ///< asked once a step whether it wants the times of its instructions; outlives us
  StartUpClock* start_up = nullptr;  ///< told of the phases until the first step; outlives us
};

/// Host memory; whoever holds the last pointer frees it.
using HostBlock = std::shared_ptr<std::byte>;

class Executor {
 public:
  virtual ~Executor() = default;

  /// Of the blocks that steps take; says of which tensors this device keeps all samples.
  virtual const InputLayout& inputs() const = 0;
  /// Starts one step; it may run only when later ones are started, or it is finished. `inputs` is a block as inputs() says; it must stay as it is until the step is finished.
  /// Allocates nothing. At most max_in_flight() steps are started and not finished.
  /// Throws CommError (with the instruction's name) where peers fail, EnvError where the device does.
  virtual void start_step(const std::byte* inputs, const StepScalars& scalars) = 0;
  /// Waits for the oldest step that is not finished, and gives its loss; 0 for a program without one.
  /// Throws as start_step.
  virtual float finish_step() = 0;
  virtual int max_in_flight() const = 0;

  /// Zeroed memory for `inputs`, which the device reads without a detour. 64-byte aligned.
  virtual HostBlock allocate_inputs(int64_t bytes) = 0;

  /// Copies between the arena and host memory, after all steps that were started; offsets are the program's.
  virtual void read(int64_t offset, void* to, int64_t bytes) = 0;
  virtual void write(int64_t offset, const void* from, int64_t bytes) = 0;
};

/// Allocates the arena (inside `arena` when given: shared memory of program.arena_bytes, 64-byte
/// aligned, zeroed), prepares all kernels, opens all groups and fills in the initial weights.
/// `program` and `comm` must outlive it.
std::unique_ptr<Executor> make_cpu_executor(const Program& program, Communicator& comm, const ExecutorOptions& options,
                                            std::span<std::byte> arena = {});

}  // namespace trainctl
