// A Program, bound to a device: enqueues a whole step on streams, as it is, or while a graph is captured from it.
//
//   compute ─ begin ─┬─ kernels, loads, prints ───────────┬─ end       end: the loss to the host, or the next begin
//   comm             ├─ collectives ──────────────────────┤
//   recv             ├─ recvs ────────────────────────────┤
//   send             ├─ waits of sends ┬───┬──────────────┤            sends start in order and end as their
//   one per peer     │                 └───┴─ sends ──────┤            peers take them
//   to, from host    ├─ copies of activations ────────────┤            by copy engines
//   watch            └─ where the others are ─────────────┘            for the watchdog
//
// Streams wait for each other where Instruction::waits says so, and all of them at the ends of a step.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "engine/ops/cuda/cuda_kernel.h"
#include "engine/runtime/bound_operands.h"
#include "engine/runtime/cuda/byte_tables.h"
#include "engine/runtime/cuda/cuda_communicator.h"
#include "engine/runtime/cuda/handles.h"
#include "engine/runtime/cuda/sample_tables.h"
#include "engine/runtime/cuda/step_kernels.h"
#include "engine/runtime/executor.h"

namespace trainctl::cuda {

/// The addresses of the data around a step.
struct StepMemory {
  std::byte* arena = nullptr;        ///< device
  std::byte* host = nullptr;         ///< pinned: what the program keeps in the memory of the host
  Staging staging;                   ///< device
  Finished finished;                 ///< pinned
  PositionWord* position = nullptr;  ///< pinned; null if nothing reads it
  std::byte* printed = nullptr;      ///< pinned: the tensors of a slot one after another
  int64_t printed_stride = 0;
  void* scratch = nullptr;  ///< device: memory that kernels of the compute stream use while they run
  int64_t scratch_bytes = 0;
};

/// Records the times of an instruction in the step that is issued with them.
struct TimedEvents {
  Event begin, end;
};

class StepProgram {
 public:
  StepProgram(const Program& program, const StepMemory& memory, const InputLayout& inputs, const SampleTables& tables,
              const ByteTables& byte_tables, const CudaCommunicator* peers, uint64_t seed,
              std::function<void()> on_prepared);

  cudaStream_t compute() const { return streams_.at(kCompute).get(); }

  /// The way in which a step is enqueued: alone, or as number `at` of `steps` consecutive ones.
  struct Issue {
    int at = 0, steps = 1;  ///< at most kMostStepsAtOnce
    bool capturing = false;
    std::vector<TimedEvents>* times = nullptr;  ///< by instruction, to record; null: none
    const std::function<void(const Instruction&)>* on_communication = nullptr;
    int left_out = -1;                    ///< an instruction that is not run
    std::function<void()> while_waiting;  ///< called while the host waits for counts; throws to end the wait
    const StepTape* tape = nullptr;       ///< to record the exchanges of the step to, or to replay them from
  };
  void issue(const Issue& how);
  /// Runs each kernel of the program on each of its shapes once, without communication.
  void rehearse();
  /// Returns whether issue() waits for the device, so that the step cannot be captured: the host reads how many rows
  /// ranks exchange.
  static bool waits_for_counts(const Program& program);

  /// Instructions that the launch of this one runs, itself included; 0: an earlier instruction's launch runs it.
  int32_t launched_by(size_t instruction) const;

  /// Offset in a slot of a print instruction's tensor.
  int64_t printed_offset(size_t instruction) const { return bound_[instruction].printed; }
  /// Bytes that the program prints, per slot.
  static int64_t printed_bytes(const Program& program);

 private:
  enum : int { kCompute, kComm, kSend, kRecv, kToHost, kFromHost, kWatch, kFirstChannel };

  /// An instruction with all look-ups done.
  struct Bound : BoundMove {
    int stream = kCompute;
    CudaKernel kernel;        ///< empty: the launch of an earlier instruction does the work
    InputCopy input;          ///< load
    ByteCopy bytes;           ///< load of a tensor that is made of bytes: in place of `input`
    int64_t printed = 0;      ///< print: offset in a slot of the printed memory
    bool at_begin = false;    ///< a load that is copied together with the scalars
    size_t leader = 0;        ///< the first instruction of its launch
    std::vector<int> events;  ///< instructions of other streams that this one waits for
    Event done;               ///< set if another stream waits for this instruction
    Event reached;            ///< set if it reports its position: all earlier work in its stream is done
    int makes_counts = -1;    ///< all_gather of counts that the host reads: index in counts_
    int uses_counts = -1;     ///< all_to_all of counted rows: index in counts_
    CountedRows rows;         ///< with counts in counts_
  };
  /// Numbers of rows, which the device sends to the host.
  struct Counts {
    PinnedMemory memory;
    Event arrived;
  };

  Bound bind(const Instruction& instruction);
  CudaKernelCall call_of(const Instruction& instruction);
  CudaKernel bind_kernel(const Instruction& instruction);
  bool bind_as_one(size_t first, size_t end);
  void bind_counts();
  void bind_launches();
  void bind_waits();
  void bind_first_loads();
  void bind_positions();
  void use_stream(int stream, bool high_priority);
  int channel_to(int peer);

  void begin(const Staging& staging);
  void end(const Issue& how);
  void enqueue(int index, const Issue& how);
  void enqueue_work(const Instruction& instruction, const Bound& bound, const Issue& how);
  void enqueue_collective(const Instruction& instruction, const Bound& bound, const Issue& how);
  void enqueue_exchange(int index, const Bound& bound, const Issue& how);
  void report_position(int index, Bound& bound, cudaStream_t stream);

  StepScalars* scalars() const;
  Reported reported() const;
  Staging staging_of(const Issue& how) const;

  const Program& program_;
  StepMemory memory_;
  const CudaCommunicator* peers_;  ///< null: none, or its exchanges are replayed
  const uint64_t seed_;
  const std::function<void()> on_prepared_;
  std::map<int, Stream> streams_;  ///< streams that the program uses
  std::map<int, Event> ends_;      ///< end of a step, for each stream but compute
  std::map<int, int> channels_;    ///< stream of the sends to each peer
  Event begun_;
  std::vector<Bound> bound_;
  std::vector<Counts> counts_;
  FirstCopies first_copies_;
  CudaScratch scratch_;     ///< scratch of the compute stream
  CudaScratch no_scratch_;  ///< scratch of the comm stream, whose kernels run at the same time and need none
  int64_t printed_ = 0;
};

}  // namespace trainctl::cuda
