// A Program, bound to a device: enqueues a whole step on streams, as it is, or while a graph is captured from it.
// Binding comes first, enqueueing after it.
#include "engine/runtime/cuda/step_program.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "engine/base/error.h"
#include "engine/base/round_up.h"
#include "engine/graph/counted_rows.h"
#include "engine/ops/small_step/kernel_group_cuda.h"
#include "engine/runtime/cuda/f16_operands.h"
#include "engine/runtime/cuda/nvtx_range.h"
#include "engine/runtime/launches.h"
#include "engine/runtime/workspace.h"

namespace trainctl::cuda {
namespace {

constexpr int64_t kPrintAlignment = 64;

/// Waits without giving up the processor at first, because the device has no work meanwhile.
void wait_for_event(const Event& event, const std::function<void()>& while_waiting) {
  constexpr std::chrono::milliseconds kSpin{2};
  constexpr std::chrono::microseconds kNap{50};
  const auto start = std::chrono::steady_clock::now();
  cudaError_t status = cudaSuccess;
  while ((status = cudaEventQuery(event.get())) == cudaErrorNotReady) {
    if (while_waiting) while_waiting();
    if (std::chrono::steady_clock::now() - start > kSpin) std::this_thread::sleep_for(kNap);
  }
  cuda_check(status, "the numbers of rows that ranks exchange");
}

int64_t print_bytes(const Instruction& print) { return round_up(print.inputs[0].bytes(), kPrintAlignment); }

}  // namespace

int64_t StepProgram::printed_bytes(const Program& program) {
  int64_t bytes = 0;
  for (const Instruction& i : program.instructions) {
    if (i.opcode == Opcode::print) bytes += print_bytes(i);
  }
  return bytes;
}

StepProgram::StepProgram(const Program& program, const StepMemory& memory, const InputLayout& inputs,
                         const SampleTables& tables, const ByteTables& byte_tables, const CudaCommunicator* peers,
                         uint64_t seed, std::function<void()> on_prepared)
    : program_(program),
      memory_(memory),
      peers_(peers),
      seed_(seed),
      on_prepared_(std::move(on_prepared)),
      begun_(make_event()) {
  use_stream(kCompute, false);
  bound_.reserve(program.instructions.size());
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    const Instruction& instruction = program.instructions[i];
    bound_.push_back(bind(instruction));
    bound_.back().leader = i;
    if (instruction.opcode != Opcode::load) continue;
    Bound& bound = bound_.back();
    bound.input = {inputs.offsets[i], bound.out, bound.count, tables.of(instruction.op),
                   tables.sample_bytes(instruction.op)};
    if (inputs.as_bytes[i]) bound.bytes = byte_tables.copy_of(instruction, inputs.offsets[i], bound.out);
  }
  bind_counts();
  bind_launches();
  bind_waits();
  bind_first_loads();
  bind_positions();
  check(scratch_.bytes() <= memory.scratch_bytes,
        "a kernel requests more scratch memory than most_cuda_scratch() "
        "returns");
  check(no_scratch_.bytes() == 0,
        "a kernel of the comm stream uses no scratch memory, which is that of the compute stream");
  scratch_.set_memory(memory.scratch);
}

StepScalars* StepProgram::scalars() const {
  return reinterpret_cast<StepScalars*>(memory_.arena + program_.scalars_offset);
}

Reported StepProgram::reported() const {
  if (program_.loss_offset < 0) return {};
  return {reinterpret_cast<const float*>(memory_.arena + program_.loss_offset),
          static_cast<int>(program_.metrics.size())};
}

Staging StepProgram::staging_of(const Issue& how) const {
  Staging staging = memory_.staging;
  staging.ahead = how.at;
  return staging;
}

void StepProgram::use_stream(int stream, bool high_priority) {
  if (streams_.contains(stream)) return;
  streams_.emplace(stream, make_stream(high_priority));
  if (stream != kCompute) ends_.emplace(stream, make_event());
}

/// A send blocks its stream until the peer receives; other sends must not wait behind it.
int StepProgram::channel_to(int peer) {
  const auto [found, added] = channels_.try_emplace(peer, kFirstChannel + static_cast<int>(channels_.size()));
  use_stream(found->second, true);
  return found->second;
}

StepProgram::Bound StepProgram::bind(const Instruction& instruction) {
  Bound bound;
  if (communicates(instruction)) {
    bound.stream = instruction.opcode == Opcode::collective ? kComm
                   : instruction.opcode == Opcode::recv     ? kRecv
                                                            : kSend;
    use_stream(bound.stream, true);
    if (instruction.opcode == Opcode::send) bound.stream = channel_to(instruction.peer);
    check(instruction.opcode != Opcode::recv || !instruction.outputs[0].accumulate,
          "messages can be accumulated only on CPUs");
  }
  if (instruction.opcode == Opcode::kernel) {
    if (instruction.stream == trainctl::Stream::comm) {
      bound.stream = kComm;
      use_stream(kComm, true);
    }
    return bound;
  }
  if (instruction.opcode == Opcode::copy) {
    bound.stream = instruction.stream == trainctl::Stream::to_host ? kToHost : kFromHost;
    use_stream(bound.stream, true);
  }
  static_cast<BoundMove&>(bound) = bind_move(instruction, program_, {memory_.arena, memory_.host});
  if (instruction.opcode == Opcode::print) {
    bound.printed = printed_;
    printed_ += print_bytes(instruction);
  }
  return bound;
}

CudaKernelCall StepProgram::call_of(const Instruction& instruction) {
  CudaKernelCall call;
  bind_operands(instruction, program_, {memory_.arena, memory_.host}, call);
  call.seed = seed_;
  call.scratch = instruction.stream == trainctl::Stream::comm ? &no_scratch_ : &scratch_;
  return call;
}

CudaKernel StepProgram::bind_kernel(const Instruction& instruction) {
  const CudaKernelDef* def = find_cuda_kernel(instruction.op);
  check(def != nullptr, "no CUDA kernel '" + instruction.op + "', which instruction '" + instruction.name +
                            "' needs; a family of engine/ops defines none for GPUs");
  const ScratchUse scratch = scratch_of(instruction);
  if (scratch.copies == 0) return def->prepare(call_of(instruction));
  return prepare_with_float_copies(*def, *kernel_of(instruction), call_of(instruction),
                                   static_cast<std::byte*>(memory_.scratch) + scratch.kernel);
}

int32_t StepProgram::launched_by(size_t instruction) const {
  size_t end = instruction;
  while (end < bound_.size() && bound_[end].leader == instruction) ++end;
  return static_cast<int32_t>(end - instruction);
}

bool StepProgram::bind_as_one(size_t first, size_t end) {
  const std::vector<Instruction>& code = program_.instructions;
  std::vector<GroupedKernel> group;
  for (size_t i = first; i < end; ++i) {
    if (scratch_of(code[i]).copies > 0) return false;
    group.push_back({kernel_of(code[i]), call_of(code[i])});
  }
  std::optional<CudaKernel> kernel = prepare_group(group);
  if (!kernel) return false;
  bound_[first].kernel = std::move(*kernel);
  for (size_t i = first; i < end; ++i) bound_[i].leader = first;
  return true;
}

bool StepProgram::waits_for_counts(const Program& program) {
  return std::any_of(program.instructions.begin(), program.instructions.end(),
                     [](const Instruction& i) { return i.attrs.flag(kHostReads) && !i.idle; });
}

/// Finds, for each exchange of counted rows, the all_gather of its counts. A copy of the counts has the same ones.
void StepProgram::bind_counts() {
  std::map<int64_t, int> at;  // by offset
  for (size_t i = 0; i < bound_.size(); ++i) {
    const Instruction& instruction = program_.instructions[i];
    Bound& bound = bound_[i];
    if (instruction.attrs.flag(kHostReads)) {
      bound.makes_counts = at[instruction.outputs.at(0).offset] = static_cast<int>(counts_.size());
      counts_.push_back({make_pinned_memory(instruction.outputs[0].bytes()), make_event()});
    }
    if (instruction.opcode == Opcode::copy)
      if (const auto found = at.find(instruction.inputs.at(0).offset); found != at.end())
        at[instruction.outputs.at(0).offset] = found->second;
    if (!instruction.attrs.has(kRowElements)) continue;
    bound.uses_counts = at.at(instruction.inputs.at(1).offset);
    const void* const counts = counts_[static_cast<size_t>(bound.uses_counts)].memory.get();
    bound.rows = {instruction.attrs.integer(kRowElements), static_cast<const int32_t*>(counts),
                  instruction.attrs.flag(kReversed)};
  }
}

/// Prepares one kernel for a whole launch, else for as many consecutive instructions as have one.
void StepProgram::bind_launches() {
  const std::vector<Instruction>& code = program_.instructions;
  for (size_t first = 0, end; first < code.size(); first = end) {
    end = end_of_launch(code, first);
    while (end - first > 1 && !bind_as_one(first, end)) --end;
    if (end - first == 1 && code[first].opcode == Opcode::kernel) bound_[first].kernel = bind_kernel(code[first]);
    if (on_prepared_) on_prepared_();
  }
}

void StepProgram::bind_waits() {
  for (size_t i = 0; i < bound_.size(); ++i) {
    for (int earlier : program_.instructions[i].waits) {
      Bound& awaited = bound_[static_cast<size_t>(earlier)];
      // All sends wait on the same stream, which is not their own.
      const bool is_send = program_.instructions[i].opcode == Opcode::send;
      if (awaited.stream == bound_[i].stream && !is_send) continue;
      if (!awaited.done) awaited.done = make_event();
      bound_[bound_[i].leader].events.push_back(earlier);
    }
  }
}

/// Loads at the start of a step are copied by its first kernel, without a launch of their own.
void StepProgram::bind_first_loads() {
  for (size_t i = 0; i < bound_.size() && first_copies_.count < FirstCopies::kMost; ++i) {
    if (program_.instructions[i].opcode != Opcode::load || !bound_[i].events.empty()) return;
    if (bound_[i].bytes.values != nullptr) continue;
    bound_[i].at_begin = true;
    first_copies_.list[first_copies_.count++] = bound_[i].input;
  }
}

/// Communication and marks report positions; a short step without communication reports none.
void StepProgram::bind_positions() {
  for (size_t i = 0; i < bound_.size(); ++i)
    if (communicates(program_.instructions[i])) bound_[i].reached = make_event();
  for (const size_t mark : progress_marks(program_)) bound_[bound_[mark].leader].reached = make_event();
  const bool reports = std::any_of(bound_.begin(), bound_.end(), [](const Bound& b) { return bool{b.reached}; });
  if (reports)
    use_stream(kWatch, true);
  else
    memory_.position = nullptr;
}

void StepProgram::issue(const Issue& how) {
  begin(staging_of(how));
  for (int i = 0; i < static_cast<int>(bound_.size()); ++i) {
    const Instruction& instruction = program_.instructions[static_cast<size_t>(i)];
    const NvtxRange range(instruction.name.c_str());
    try {
      enqueue(i, how);
    } catch (const EnvError& error) {
      throw EnvError(instruction.name + ": " + error.what());
    }
  }
  end(how);
}

void StepProgram::rehearse() {
  enqueue_begin_step(memory_.staging, first_copies_, scalars(), memory_.position, {}, compute());
  if (memory_.position != nullptr) enqueue_position(scalars(), 0, memory_.position, compute());
  std::vector<size_t> leaders;
  for (size_t i = 0; i < bound_.size(); ++i)
    if (bound_[i].leader == i) leaders.push_back(i);
  for (const size_t i : distinct_launches(program_, leaders)) {
    const Instruction& instruction = program_.instructions[i];
    if (!communicates(instruction) && instruction.opcode != Opcode::copy) enqueue_work(instruction, bound_[i], {});
  }
  enqueue_end_step(memory_.staging, {}, memory_.finished, compute());
}

void StepProgram::begin(const Staging& staging) {
  enqueue_begin_step(staging, first_copies_, scalars(), memory_.position, reported(), compute());
  if (ends_.empty()) return;
  cuda_check(cudaEventRecord(begun_.get(), compute()), "cudaEventRecord");
  for (const auto& [stream, event] : ends_) {
    cuda_check(cudaStreamWaitEvent(streams_.at(stream).get(), begun_.get()), "cudaStreamWaitEvent");
  }
}

void StepProgram::end(const Issue& how) {
  for (const auto& [stream, event] : ends_) {
    cuda_check(cudaEventRecord(event.get(), streams_.at(stream).get()), "cudaEventRecord");
    cuda_check(cudaStreamWaitEvent(compute(), event.get()), "cudaStreamWaitEvent");
  }
  if (how.at + 1 == how.steps) enqueue_end_step(staging_of(how), reported(), memory_.finished, compute());
}

void StepProgram::enqueue(int index, const Issue& how) {
  const Instruction& instruction = program_.instructions[static_cast<size_t>(index)];
  Bound& bound = bound_[static_cast<size_t>(index)];
  cudaStream_t stream = streams_.at(bound.stream).get();
  // A send starts once the earlier sends have started and everything that they waited for is done.
  cudaStream_t waiting = instruction.opcode == Opcode::send ? streams_.at(kSend).get() : stream;
  for (int earlier : bound.events) {
    cuda_check(cudaStreamWaitEvent(waiting, bound_[static_cast<size_t>(earlier)].done.get()), "cudaStreamWaitEvent");
  }
  if (bound.reached) report_position(index, bound, waiting);
  if (communicates(instruction)) {
    if (waiting != stream) cuda_check(cudaStreamWaitEvent(stream, bound.reached.get()), "cudaStreamWaitEvent");
    if (how.on_communication != nullptr && *how.on_communication) (*how.on_communication)(instruction);
  }
  const unsigned flags = how.capturing ? cudaEventRecordExternal : cudaEventRecordDefault;
  TimedEvents* times = how.times == nullptr ? nullptr : &(*how.times)[static_cast<size_t>(index)];
  if (times != nullptr) cuda_check(cudaEventRecordWithFlags(times->begin.get(), stream, flags), "cudaEventRecord");
  if (how.tape != nullptr && communicates(instruction))
    enqueue_exchange(index, bound, how);
  else if (index != how.left_out)
    enqueue_work(instruction, bound, how);
  if (times != nullptr) cuda_check(cudaEventRecordWithFlags(times->end.get(), stream, flags), "cudaEventRecord");
  if (bound.done) cuda_check(cudaEventRecord(bound.done.get(), stream), "cudaEventRecord");
}

/// Runs during the communication, not before it, so it adds no time to the step.
void StepProgram::report_position(int index, Bound& bound, cudaStream_t stream) {
  cuda_check(cudaEventRecord(bound.reached.get(), stream), "cudaEventRecord");
  cudaStream_t watch = streams_.at(kWatch).get();
  cuda_check(cudaStreamWaitEvent(watch, bound.reached.get()), "cudaStreamWaitEvent");
  enqueue_position(scalars(), index, memory_.position, watch);
}

/// Records what the rank gives and receives; without peers, replays what was received.
void StepProgram::enqueue_exchange(int index, const Bound& bound, const Issue& how) {
  const Instruction& instruction = program_.instructions[static_cast<size_t>(index)];
  if (instruction.idle) return;
  cudaStream_t stream = streams_.at(bound.stream).get();
  const auto copy = [stream](void* to, const void* from, int64_t bytes) {
    if (bytes > 0)
      cuda_check(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, stream),
                 "cudaMemcpyAsync of an exchange");
  };
  const auto exchange = std::lower_bound(how.tape->exchanges.begin(), how.tape->exchanges.end(), index,
                                         [](const StepTape::Exchange& e, int i) { return e.instruction < i; });
  check(exchange != how.tape->exchanges.end() && exchange->instruction == index, "a tape has all exchanges of a step");
  std::byte* const received = how.tape->received.get() + exchange->received;
  std::byte* const given = (peers_ == nullptr ? how.tape->given_again : how.tape->given).get();
  copy(given + exchange->given, bound.in, exchange->given_bytes);
  if (peers_ == nullptr) return copy(bound.out, received, exchange->received_bytes);
  enqueue_work(instruction, bound, how);
  copy(received, bound.out, exchange->received_bytes);
}

/// The counts are on their way to the host as soon as they are known, so that the wait for them is short.
void StepProgram::enqueue_collective(const Instruction& instruction, const Bound& bound, const Issue& how) {
  cudaStream_t stream = streams_.at(bound.stream).get();
  if (bound.uses_counts >= 0) {
    wait_for_event(counts_[static_cast<size_t>(bound.uses_counts)].arrived, how.while_waiting);
    return peers_->all_to_all_rows(instruction, bound, bound.rows, stream);
  }
  peers_->collective(instruction, bound, stream);
  if (bound.makes_counts < 0) return;
  const Counts& counts = counts_[static_cast<size_t>(bound.makes_counts)];
  cuda_check(cudaMemcpyAsync(counts.memory.get(), bound.out, static_cast<size_t>(instruction.outputs[0].bytes()),
                             cudaMemcpyDeviceToHost, stream),
             "cudaMemcpyAsync of the numbers of rows");
  cuda_check(cudaEventRecord(counts.arrived.get(), stream), "cudaEventRecord");
}

/// Enqueues what the instruction does on its stream; waits and events are those of the caller.
void StepProgram::enqueue_work(const Instruction& instruction, const Bound& bound, const Issue& how) {
  const Staging staging = staging_of(how);
  cudaStream_t stream = streams_.at(bound.stream).get();
  if (instruction.idle) return;
  check(peers_ != nullptr || !communicates(instruction), "a program that communicates needs a communicator");
  switch (instruction.opcode) {
    case Opcode::kernel:
      if (bound.kernel) bound.kernel(stream);
      return;
    case Opcode::load:
      if (bound.bytes.values != nullptr) return enqueue_bytes(staging, bound.bytes, stream);
      if (!bound.at_begin) enqueue_load(staging, bound.input, stream);
      return;
    case Opcode::collective:
      return enqueue_collective(instruction, bound, how);
    case Opcode::send:
      return peers_->send(instruction.peer, bound.in, bound.count, stream);
    case Opcode::recv:
      return peers_->recv(instruction.peer, bound.out, bound.count, stream);
    case Opcode::print:
      return enqueue_print(staging, bound.in, memory_.printed + bound.printed, memory_.printed_stride, bound.count,
                           stream);
    case Opcode::copy:
      return cuda_check(
          cudaMemcpyAsync(bound.out, bound.in, static_cast<size_t>(bound.count), cudaMemcpyDefault, stream),
          "cudaMemcpyAsync of activations");
    case Opcode::wait:
      return;
  }
}

}  // namespace trainctl::cuda
