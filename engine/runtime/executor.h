// Walks a Program on one rank's device; decides nothing.
//
// Starting and finishing a step are separate calls, so that a device never waits for its host:
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
#include "engine/runtime/state_copy.h"
#include "engine/runtime/step_tape.h"
#include "engine/runtime/timeline.h"

namespace trainctl {

/// Receives the tensors of `print:`.
using PrintSink = std::function<void(const Operand& operand, const void* data, int micro_batch)>;

/// An instruction that one step does not run, to test how the other ranks react.
struct LeftOut {
  uint32_t step = 0;     ///< StepScalars::step
  int instruction = -1;  ///< index into Program::instructions
};

struct ExecutorOptions {
  uint64_t seed = 0;
  int threads = 1;
  int in_flight = 2;  ///< requested steps in flight; a device may allow fewer
  PrintSink print;    ///< called by finish_step, or by start_step if the step runs on the host
  /// Called with each collective, send and recv as it is issued (for tests and `run --record`). A captured
  /// program is issued only once, with its first step.
  std::function<void(const Instruction&)> on_communication;
  /// Tables that a device may keep whole if it has room; read only while the executor is constructed.
  std::vector<SampleTable> tables;
  std::vector<ByteTable> byte_tables;  ///< tensors that a device may convert from bytes; a CPU does not
  std::function<void()> on_prepared;   ///< called with each kernel that is ready: to choose one may take seconds
  /// Minimum size of the arena that the executor allocates, to leave room for programs that run beside() it.
  int64_t least_arena_bytes = 0;
  std::optional<LeftOut> left_out;  ///< for tests
  Timeline* timeline = nullptr;  ///< decides once per step whether to time its instructions; must outlive the executor
  StartUpClock* start_up = nullptr;  ///< records the phases until the first step; must outlive the executor
  /// For a GPU that replays recorded steps: the program communicates with no other rank, and its exchanges return
  /// recorded data. Must outlive the executor.
  StepTape* replays = nullptr;
};

/// Host memory; freed with the last pointer to it.
using HostBlock = std::shared_ptr<std::byte>;

class Executor {
 public:
  virtual ~Executor() = default;

  /// Returns the layout of the input blocks of steps, including the tensors whose samples this device keeps.
  virtual const InputLayout& inputs() const = 0;
  /// Starts one step; it may run only when later ones are started, or when it is finished. `inputs` is a block with the
  /// layout inputs(); it must not change until the step is finished. Allocates nothing. At most max_in_flight() steps
  /// may be unfinished. Throws CommError (with the instruction's name) if peers fail, EnvError if the device does.
  virtual void start_step(const std::byte* inputs, const StepScalars& scalars) = 0;
  /// Waits for the oldest unfinished step and returns its loss; 0 in a program without one. The sums of
  /// Program::metrics are written to `metrics`, which has room for all or none. Throws the same errors as start_step.
  virtual float finish_step(std::span<float> metrics) = 0;
  float finish_step() { return finish_step({}); }
  virtual int max_in_flight() const = 0;

  /// An executor of another program on the same arena, with variables at the same offsets. Before the first step, and
  /// before anything is written: variables may get their initial values again. Only one of the two may have unfinished
  /// steps at a time. This one, and `program`, must outlive it.
  virtual std::unique_ptr<Executor> beside(const Program& program, const ExecutorOptions& options) = 0;

  /// Zeroed memory for `inputs`, which the device reads directly. 64-byte aligned.
  virtual HostBlock allocate_inputs(int64_t bytes) = 0;

  /// Copies between the arena and host memory, after all started steps; offsets are the program's.
  virtual void read(int64_t offset, void* to, int64_t bytes) = 0;
  virtual void write(int64_t offset, const void* from, int64_t bytes) = 0;

  // Data that host and device exchange in every step, without waiting for each copy. No step is unfinished meanwhile.

  /// Announces that begin_write and begin_read will use this memory, which makes copies faster. It must outlive the
  /// executor.
  virtual void use_often(std::span<std::byte>) {}
  /// Same as write, for the step that is started next; `from` must not change until that is finished.
  virtual void begin_write(int64_t offset, const void* from, int64_t bytes) { write(offset, from, bytes); }
  /// Same as read; `to` has the bytes once wait_read has returned. Reads end in the order in which they began.
  virtual void begin_read(int64_t offset, void* to, int64_t bytes) { read(offset, to, bytes); }
  /// Waits for the oldest read that has not been waited for.
  virtual void wait_read() {}

  /// Defines what begin_copy copies and where to; called once, before it. The memory at `to` must outlive the executor.
  virtual void prepare_copy(const std::vector<StateCopy>& copies, std::byte* to) = 0;
  /// Copies those ranges as they are after all started steps, while later steps run. The copy before it must be
  /// complete. Throws the same errors as start_step.
  virtual void begin_copy() = 0;
  /// Returns whether the last copy is complete; with `wait` once it is.
  virtual bool is_copied(bool wait) = 0;

  // Records a step for a replay on another GPU, while the device continues. An executor of a CPU has no tape.
  //
  //   training card    open_tape │ begin_record, step, end_record, is_recorded │ tape_digests
  //   replaying card                                                load_tape, step, tape_digests

  /// A tape for one step without memory. Null: this device records no steps.
  virtual std::unique_ptr<StepTape> make_tape() { return nullptr; }
  /// Takes the memory of recordings; called once, before the first. Waits for all started steps.
  virtual void open_tape(StepTape&) {}
  /// Records the step that is started next. The tape of an earlier step must be complete.
  virtual void begin_record(StepTape&) {}
  /// Also records the state after all started steps.
  virtual void end_record() {}
  /// Returns whether the tape is complete; with `wait` once it is. Throws the same errors as start_step.
  virtual bool is_recorded(bool) { return true; }
  /// ExecutorOptions::replays: the next step starts from the state before the recorded one.
  virtual void load_tape() {}
  /// Digests (range_digest.h) of each StepTape::state, then of what each exchange gave: of the recorded step once it
  /// is complete; with ExecutorOptions::replays of the last step, which is finished.
  virtual std::vector<uint64_t> tape_digests() { return {}; }
  /// Copies from memory of the tape to the host.
  virtual void fetch(const std::byte* /*from*/, void* /*to*/, int64_t /*bytes*/) {}
};

/// Allocates the arena (or uses `arena` if given: shared memory of program.arena_bytes, 64-byte
/// aligned, zeroed), prepares all kernels, opens all groups and fills in the initial weights.
/// `program` and `comm` must outlive it.
std::unique_ptr<Executor> make_cpu_executor(const Program& program, Communicator& comm, const ExecutorOptions& options,
                                            std::span<std::byte> arena = {});

}  // namespace trainctl
