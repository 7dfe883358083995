// The executor of a CPU rank. Everything is bound when the program is loaded: pointers into the arena,
// kernels, groups, the sends that an instruction waits for. A step is then a walk over a flat list.
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "engine/base/error.h"
#include "engine/base/text.h"
#include "engine/graph/counted_rows.h"
#include "engine/ops/cpu/threads_cpu.h"
#include "engine/runtime/bound_operands.h"
#include "engine/runtime/cpu/half_operands.h"
#include "engine/runtime/cpu/state_copier.h"
#include "engine/runtime/executor.h"
#include "engine/runtime/initial_weights.h"

namespace trainctl {
namespace {

constexpr int64_t kArenaAlignment = 64;

/// Zeroed memory that is mapped for this process alone.
class Pages {
 public:
  explicit Pages(int64_t bytes) : bytes_(static_cast<size_t>(std::max<int64_t>(bytes, 1))) {
    void* memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
      throw EnvError("cannot allocate " + format_bytes(bytes) +
                     " for the arena and the inputs: " + std::strerror(errno) +
                     "; use more ranks, parallel.optimizer_shard or parallel.recompute "
                     "(activation checkpointing)");
    }
    madvise(memory, bytes_, MADV_HUGEPAGE);
    data_ = static_cast<std::byte*>(memory);
  }
  ~Pages() { munmap(data_, bytes_); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  std::byte* data() const { return data_; }

 private:
  size_t bytes_;
  std::byte* data_ = nullptr;
};

/// An instruction with everything that a step would otherwise look up.
struct Bound : BoundMove {
  const Instruction* instruction = nullptr;
  CpuKernel kernel;
  int group = -1;           ///< the Communicator's id
  std::vector<int> sends;   ///< indices of the sends that must have been received before this starts
  int64_t sequence = 0;     ///< send: its number on the channel in this step; 0: not in flight
  int64_t input = -1;       ///< load: offset of its data in the block of inputs
  CountedRows rows;         ///< all_to_all: if it has counts
  int64_t block_bytes = 0;  ///< exchanged_block_bytes()
};

class CpuExecutor final : public Executor {
 public:
  /// `is_filled`: the arena already contains the values of the variables.
  CpuExecutor(const Program& program, Communicator& comm, const ExecutorOptions& options, std::span<std::byte> arena,
              bool is_filled = false);

  void start_step(const std::byte* inputs, const StepScalars& scalars) override;
  float finish_step(std::span<float> metrics) override;
  int max_in_flight() const override { return 1; }
  std::unique_ptr<Executor> beside(const Program& program, const ExecutorOptions& options) override;
  HostBlock allocate_inputs(int64_t bytes) override;
  const InputLayout& inputs() const override { return inputs_; }
  void read(int64_t offset, void* to, int64_t bytes) override;
  void write(int64_t offset, const void* from, int64_t bytes) override;
  void prepare_copy(const std::vector<StateCopy>& copies, std::byte* to) override;
  void begin_copy() override;
  bool is_copied(bool wait) override;

 private:
  void open_groups();
  RankMemory memory() const { return {arena_.data(), host_ ? host_->data() : nullptr}; }
  Bound bind(const Instruction& instruction);
  void bind_kernel(const Instruction& instruction, Bound& bound);

  void run(Bound& bound, const std::byte* inputs);
  void run_timed(int position, const std::byte* inputs, Timeline& timeline, uint32_t step);
  void run_collective(const Bound& bound);
  void wait_for_sends(const Bound& bound);
  void wait_for_send(Bound& send);
  [[noreturn]] void rethrow(const CommError& error, const Instruction& instruction, uint32_t step) const;

  const Program& program_;
  const InputLayout inputs_;
  Communicator& comm_;
  ExecutorOptions options_;
  /// `host_` has the buffers that a GPU would keep in the memory of its host (kHostOffset).
  std::unique_ptr<Pages> pages_, host_;
  std::span<std::byte> arena_;
  std::vector<int> groups_;
  std::vector<Bound> bound_;
  std::vector<int> last_sends_;  ///< sends that only the end of the step waits for
  bool started_ = false;         ///< a step that is not finished
  std::unique_ptr<StateCopier> copier_;
};

/// Prepares the kernels of all instructions, connects the ranks and writes the initial weights. `arena`: memory of the
/// caller, or empty; `is_filled`: it already contains weights.
CpuExecutor::CpuExecutor(const Program& program, Communicator& comm, const ExecutorOptions& options,
                         std::span<std::byte> arena, bool is_filled)
    : program_(program), inputs_(input_layout(program)), comm_(comm), options_(options), arena_(arena) {
  check(arena.empty() || static_cast<int64_t>(arena.size()) >= program.arena_bytes, "the given arena is too small");
  if (arena.empty()) {
    const int64_t bytes = std::max(program.arena_bytes, options.least_arena_bytes);
    pages_ = std::make_unique<Pages>(bytes);
    arena_ = {pages_->data(), static_cast<size_t>(bytes)};
  }
  if (program.memory.host > 0) host_ = std::make_unique<Pages>(program.memory.host);
  check(reinterpret_cast<uintptr_t>(arena_.data()) % kArenaAlignment == 0, "the arena must be 64-byte aligned");
  if (!is_filled) comm_.register_arena(arena_.data(), static_cast<int64_t>(arena_.size()));
  phase_ended(options_.start_up, "memory");
  open_groups();
  phase_ended_together(options_.start_up, "connect");
  cpu::start_workers(options.threads);
  bound_.reserve(program.instructions.size());
  for (const Instruction& instruction : program.instructions) {
    bound_.push_back(bind(instruction));
    bound_.back().input = inputs_.offsets[bound_.size() - 1];
  }

  std::vector<bool> awaited(bound_.size());
  for (const Bound& b : bound_) {
    for (int send : b.sends) awaited[send] = true;
  }
  for (size_t i = 0; i < bound_.size(); ++i) {
    if (program.instructions[i].opcode == Opcode::send && !awaited[i]) last_sends_.push_back(static_cast<int>(i));
  }
  phase_ended(options_.start_up, "kernels");
  if (!is_filled) write_initial_weights(program, options_.seed, arena_.data());
  phase_ended(options_.start_up, "weights");
}

/// Opening is collective, and each rank knows only its own groups. All ranks open in one order (by the
/// ranks in the group), so that they do not wait for each other in a circle.
void CpuExecutor::open_groups() {
  std::vector<int> order(program_.groups.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int>(i);
  std::sort(order.begin(), order.end(), [&](int a, int b) { return program_.groups[a] < program_.groups[b]; });
  groups_.resize(order.size());
  for (int g : order) groups_[g] = comm_.open_group(program_.groups[g]);
}

/// Looks up everything that a run of the instruction needs: its kernel or addresses, its group, and the sends it waits
/// for.
Bound CpuExecutor::bind(const Instruction& instruction) {
  Bound bound;
  bound.instruction = &instruction;
  for (int index : instruction.waits) {
    if (program_.instructions[index].opcode == Opcode::send) bound.sends.push_back(index);
  }
  if (instruction.opcode == Opcode::kernel) {
    bind_kernel(instruction, bound);
    if (options_.on_prepared) options_.on_prepared();
    return bound;
  }
  static_cast<BoundMove&>(bound) = bind_move(instruction, program_, memory());
  if (instruction.opcode == Opcode::collective) bound.group = groups_.at(instruction.group);
  if (instruction.attrs.has(kRowElements))
    bound.rows = {instruction.attrs.integer(kRowElements),
                  reinterpret_cast<const int32_t*>(address_of(instruction.inputs.at(1), program_, arena_.data())),
                  instruction.attrs.flag(kReversed)};
  bound.block_bytes = exchanged_block_bytes(instruction, program_);
  return bound;
}

void CpuExecutor::bind_kernel(const Instruction& instruction, Bound& bound) {
  const CpuKernelDef* def = find_cpu_kernel(instruction.op);
  check(def != nullptr, "no CPU kernel '" + instruction.op + "', which instruction '" + instruction.name +
                            "' needs; a family of engine/ops defines none for CPUs");
  KernelCall call;
  bind_operands(instruction, program_, memory(), call);
  call.seed = options_.seed;
  call.threads = options_.threads;
  bound.kernel = prepare_with_float_copies(*def, std::move(call));
}

/// Runs all instructions of the step, and publishes the position of the rank before each.
void CpuExecutor::start_step(const std::byte* inputs, const StepScalars& scalars) {
  check(!started_, "a step must be finished before the next is started");
  std::memcpy(arena_.data() + program_.scalars_offset, &scalars, sizeof(scalars));
  const uint32_t step = scalars.step + 1;  // peers and messages to users count steps from 1
  Timeline* const timeline =
      options_.timeline != nullptr && options_.timeline->wants(scalars.step) ? options_.timeline : nullptr;
  const int left_out =
      options_.left_out && options_.left_out->step == scalars.step ? options_.left_out->instruction : -1;
  int position = 0;
  try {
    for (; position < static_cast<int>(bound_.size()); ++position) {
      if (position == left_out) continue;
      comm_.set_position({step, position});
      if (copier_) copier_->before(position);
      if (timeline != nullptr) {
        run_timed(position, inputs, *timeline, scalars.step);
      } else {
        wait_for_sends(bound_[position]);
        run(bound_[position], inputs);
      }
    }
    // The next step overwrites these buffers.
    for (int send : last_sends_) {
      position = send;
      wait_for_send(bound_[send]);
    }
  } catch (const CommError& error) {
    rethrow(error, program_.instructions[position], step);
  }
  comm_.set_position({step, -1});
  started_ = true;
}

void CpuExecutor::run_timed(int position, const std::byte* inputs, Timeline& timeline, uint32_t step) {
  Bound& bound = bound_[position];
  TimeSpan span{step, position, monotonic_ns()};
  wait_for_sends(bound);
  span.begin_ns = bound.sends.empty() ? span.ready_ns : monotonic_ns();
  run(bound, inputs);
  span.end_ns = monotonic_ns();
  timeline.ran(span);
}

void CpuExecutor::run(Bound& bound, const std::byte* inputs) {
  const Instruction& instruction = *bound.instruction;
  if (instruction.idle) return;
  switch (instruction.opcode) {
    case Opcode::kernel:
      bound.kernel();
      break;
    case Opcode::load:
      std::memcpy(bound.out, inputs + bound.input, static_cast<size_t>(bound.count));
      break;
    case Opcode::collective:
      if (options_.on_communication) options_.on_communication(instruction);
      run_collective(bound);
      break;
    case Opcode::send:
      if (options_.on_communication) options_.on_communication(instruction);
      bound.sequence = comm_.send(instruction.peer, bound.in, bound.count);
      break;
    case Opcode::recv:
      if (options_.on_communication) options_.on_communication(instruction);
      if (instruction.outputs[0].accumulate) {
        comm_.recv_sum(instruction.peer, reinterpret_cast<float*>(bound.out),
                       num_elements(instruction.outputs[0].shape));
      } else {
        comm_.recv(instruction.peer, bound.out, bound.count);
      }
      break;
    case Opcode::print:
      if (options_.print) options_.print(instruction.inputs[0], bound.in, instruction.micro_batch);
      break;
    case Opcode::copy:
      std::memcpy(bound.out, bound.in, static_cast<size_t>(bound.count));
      break;
    case Opcode::wait:
      break;
  }
}

void CpuExecutor::run_collective(const Bound& b) {
  switch (b.instruction->collective) {
    case Collective::all_reduce:
      return comm_.all_reduce(b.group, b.in, b.out, b.count, b.dtype);
    case Collective::all_gather:
      return comm_.all_gather(b.group, b.in, b.out, b.count, b.dtype);
    case Collective::reduce_scatter:
      return comm_.reduce_scatter(b.group, b.in, b.out, b.count, b.dtype);
    case Collective::all_to_all:
      if (b.rows.counts != nullptr) return comm_.all_to_all_rows(b.group, b.in, b.out, b.count, b.dtype, b.rows);
      if (b.block_bytes > 0) comm_.exchanged_tokens(b.block_bytes);
      return comm_.all_to_all(b.group, b.in, b.out, b.count, b.dtype);
    case Collective::broadcast:
      return comm_.broadcast(b.group, b.in, b.out, b.count, b.dtype, b.instruction->root);
  }
}

void CpuExecutor::wait_for_sends(const Bound& bound) {
  for (int send : bound.sends) wait_for_send(bound_[send]);
}

void CpuExecutor::wait_for_send(Bound& send) {
  if (send.sequence == 0) return;
  comm_.wait_send(send.instruction->peer, send.sequence);
  send.sequence = 0;
}

void CpuExecutor::rethrow(const CommError& error, const Instruction& instruction, uint32_t step) const {
  CommError named("rank " + std::to_string(program_.rank) + ": " + instruction.name + " at step " +
                  std::to_string(step) + ": " + error.what());
  named.missing = error.missing;
  throw named;
}

float CpuExecutor::finish_step(std::span<float> metrics) {
  check(started_, "only a started step can be finished");
  started_ = false;
  float loss = 0;
  if (program_.loss_offset >= 0) read(program_.loss_offset, &loss, sizeof(loss));
  if (!metrics.empty()) {
    check(metrics.size() == program_.metrics.size(), "the report must have a slot for each metric of a step");
    read(program_.loss_offset + byte_size(DType::f32), metrics.data(), static_cast<int64_t>(metrics.size_bytes()));
  }
  return loss;
}

std::unique_ptr<Executor> CpuExecutor::beside(const Program& program, const ExecutorOptions& options) {
  return std::make_unique<CpuExecutor>(program, comm_, options, arena_, true);
}

HostBlock CpuExecutor::allocate_inputs(int64_t bytes) {
  auto pages = std::make_shared<Pages>(bytes);
  return {pages, pages->data()};
}

void CpuExecutor::read(int64_t offset, void* to, int64_t bytes) {
  check(offset >= 0 && bytes >= 0 && offset + bytes <= program_.arena_bytes, "reads must stay inside the arena");
  std::memcpy(to, arena_.data() + offset, static_cast<size_t>(bytes));
}

void CpuExecutor::write(int64_t offset, const void* from, int64_t bytes) {
  check(offset >= 0 && bytes >= 0 && offset + bytes <= program_.arena_bytes, "writes must stay inside the arena");
  std::memcpy(arena_.data() + offset, from, static_cast<size_t>(bytes));
}

void CpuExecutor::prepare_copy(const std::vector<StateCopy>& copies, std::byte* to) {
  copier_ = std::make_unique<StateCopier>(program_, arena_.data(), copies, to);
}

void CpuExecutor::begin_copy() {
  check(copier_ != nullptr && !started_, "a copy of the state is prepared, and begins between two steps");
  copier_->begin();
}

bool CpuExecutor::is_copied(bool wait) {
  if (wait) copier_->finish();
  return copier_->is_done();
}

}  // namespace

std::unique_ptr<Executor> make_cpu_executor(const Program& program, Communicator& comm, const ExecutorOptions& options,
                                            std::span<std::byte> arena) {
  return std::make_unique<CpuExecutor>(program, comm, options, arena);
}

}  // namespace trainctl
