// Steps in flight on one GPU. The copy stream moves a step's inputs and scalars into the step's slot of the staging
// memory while earlier steps run. The step itself is one graph (step_graphs.h), captured when the second step starts.
// The first step is enqueued directly: libraries then load what they load lazily.
//
// If many steps may be in flight, one graph holds half of them. A started step waits until there are enough steps for
// the graph, or until it has to be finished.
#include "engine/runtime/cuda/cuda_executor.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <thread>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/text.h"
#include "engine/runtime/cuda/cuda_executor_class.h"
#include "engine/runtime/cuda/devices.h"
#include "engine/runtime/cuda/initial_weights_cuda.h"
#include "engine/runtime/cuda/nvtx_range.h"
#include "engine/runtime/cuda/require_kernels.h"

namespace trainctl {

std::optional<int> cuda_version_of_build() { return CUDART_VERSION; }

namespace cuda {
namespace {

bool needs_peers(const Program& program) {
  return std::any_of(program.instructions.begin(), program.instructions.end(), communicates);
}

bool launches_block() {
  const char* text = std::getenv("CUDA_LAUNCH_BLOCKING");
  return text != nullptr && std::strcmp(text, "1") == 0;
}

using Clock = std::chrono::steady_clock;
/// A step that starts this long after the previous one is not held back: other ranks may wait for it.
constexpr std::chrono::milliseconds kLate{10};

/// For each number the minimum over all ranks: what every rank can do. Collective over all ranks.
template <size_t kCount>
std::array<int32_t, kCount> least_of_all(Communicator& ranks, const std::array<int32_t, kCount>& mine) {
  std::vector<int> all(static_cast<size_t>(ranks.num_ranks()));
  std::iota(all.begin(), all.end(), 0);
  std::vector<std::array<int32_t, kCount>> found(all.size());
  ranks.all_gather(ranks.open_group(all), mine.data(), found.data(), kCount, DType::i32);
  std::array<int32_t, kCount> least = mine;
  for (const std::array<int32_t, kCount>& of_rank : found)
    for (size_t i = 0; i < kCount; ++i) least[i] = std::min(least[i], of_rank[i]);
  return least;
}

}  // namespace

CudaExecutor::CudaExecutor(const Program& program, Communicator& ranks, const ExecutorOptions& options,
                           const CudaExecutorOptions& cuda, std::unique_ptr<CudaCommunicator> peers,
                           const CudaExecutor* owner)
    : program_(program),
      ranks_(ranks),
      options_(options),
      cuda_(cuda),
      tables_(program, options.tables, workspace_of(program, options.in_flight)),
      byte_tables_(program, options.byte_tables, tables_),
      inputs_(input_layout(program, tables_.kept(), byte_tables_.used())),
      workspace_(workspace_with(inputs_, program, options.in_flight)),
      stride_(workspace_.stride),
      slots_(workspace_.slots),
      arena_bytes_(owner != nullptr ? owner->arena_bytes_ : std::max(program.arena_bytes, options.least_arena_bytes)),
      arena_(owner != nullptr ? owner->arena_ : nullptr),
      host_bytes_(owner != nullptr ? owner->host_bytes_ : program.memory.host),
      host_(owner != nullptr ? owner->host_ : nullptr),
      peers_(std::move(peers)),
      times_(program, options.timeline) {
  phase_ended(options.start_up, "data");
  allocate();
  phase_ended(options.start_up, "memory");
  for (const Instruction& i : program.instructions) block_bytes_ += exchanged_block_bytes(i, program);
  StepGraphs::Options graphs = graph_options();
  const StepMemory memory = step_memory();
  step_ = std::make_unique<StepProgram>(program, memory, inputs_, tables_, byte_tables_, peers_.get(), options.seed,
                                        options.on_prepared);
  rehearse();
  phase_ended(options.start_up, "kernels");
  // The copy engines map an arena once.
  if (peers_) peers_->connect(memory.arena, owner == nullptr, options.start_up);
  clear_memory(owner == nullptr);
  phase_ended(options.start_up, "weights");
  if (options.replays != nullptr) replay_ = std::make_unique<StepReplay>(RankMemory(arena_, host_), *options.replays);
  watchdog_ = std::make_unique<Watchdog>(program, ranks, peers_.get(), position_, cuda.timeout_seconds);
  graphs_ = std::make_unique<StepGraphs>(*step_, *watchdog_, std::move(graphs));
}

/// Options of graphs on which all ranks agree. Collective if the rank has peers.
StepGraphs::Options CudaExecutor::graph_options() {
  int at_once = steps_of_graph(slots_, program_);
  // If a rank captured a step that another one issues, its host could wait for that rank's host, which waits for it.
  bool can_capture = !StepProgram::waits_for_counts(program_);
  if (peers_) {
    const auto least = least_of_all(ranks_, std::array<int32_t, 2>{at_once, can_capture ? 1 : 0});
    at_once = least[0];
    can_capture = least[1] == 1;
  }
  StepGraphs::Options graphs;
  graphs.in_use = cuda_.graph && !launches_block() && options_.replays == nullptr && can_capture;
  graphs.at_once = at_once;
  graphs.settle = [this] { synchronize(); };
  graphs.notice = [this](const std::string& line) { notice(line); };
  graphs.start_up = options_.start_up;
  return graphs;
}

/// The memory that allocate() has made, as the step's kernels use it.
StepMemory CudaExecutor::step_memory() const {
  StepMemory memory;
  memory.arena = arena_;
  memory.host = host_;
  memory.staging.counter = static_cast<StepCounter*>(counter_.get());
  memory.staging.slots = slots_;
  memory.staging.base = static_cast<const std::byte*>(staging_.get());
  memory.staging.stride = stride_;
  memory.staging.scalars = workspace_.scalars;
  memory.scratch = scratch_.get();
  memory.scratch_bytes = workspace_.scratch;
  memory.finished = {static_cast<FinishedWord*>(finished_memory_.get()), static_cast<float*>(metrics_memory_.get())};
  memory.position = static_cast<PositionWord*>(position_memory_.get());
  memory.printed = static_cast<std::byte*>(printed_memory_.get());
  memory.printed_stride = StepProgram::printed_bytes(program_);
  return memory;
}

/// Removes what the rehearsal, and libraries that time their kernels, have left in the arena, and enqueues the initial
/// weights. `owns_memory`: the executor has no arena of another one.
void CudaExecutor::clear_memory(bool owns_memory) {
  cuda_check(cudaMemsetAsync(arena_, 0, static_cast<size_t>(arena_bytes_), step_->compute()), "cudaMemsetAsync");
  enqueue_initial_weights(program_, options_.seed, {arena_, host_}, step_->compute());
  synchronize();
  if (owns_memory && host_bytes_ > 0) std::memset(host_, 0, static_cast<size_t>(host_bytes_));
}

CudaExecutor::~CudaExecutor() {
  cudaSetDevice(cuda_.device);
  // Started steps run to their end, also for the peers. The watchdog ends those that cannot.
  try {
    if (!device_is_lost) enqueue_waiting();
  } catch (const std::exception&) {
    device_is_lost = true;
  }
  while (!device_is_lost && cudaStreamQuery(step_->compute()) == cudaErrorNotReady) {
    if (watchdog_->has_given_up()) device_is_lost = true;
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  watchdog_.reset();
  if (device_is_lost) return;
  copier_.reset();
  recorder_.reset();
  replay_.reset();
  cudaDeviceSynchronize();
  for (std::byte* memory : registered_) cudaHostUnregister(memory);
  graphs_.reset();  // before the communicator, which waits for them
  peers_.reset();
}

void CudaExecutor::allocate() {
  size_t free = 0, total = 0;
  cuda_check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  const int64_t arena = arena_ == nullptr ? arena_bytes_ : 0;
  if (static_cast<int64_t>(free) < arena + workspace_.bytes()) {
    failed("loading", "the arena needs " + format_bytes(arena) + " and the workspace " +
                          format_bytes(workspace_.bytes()) + ", but only " + format_bytes(static_cast<int64_t>(free)) +
                          " of " + format_bytes(static_cast<int64_t>(total)) +
                          " are free; nvidia-smi shows which processes use the rest");
  }
  if (arena_ == nullptr) {
    own_arena_ = make_device_memory(arena_bytes_);
    arena_ = static_cast<std::byte*>(own_arena_.get());
    if (host_bytes_ > 0) own_host_ = make_pinned_memory(host_bytes_);
    host_ = static_cast<std::byte*>(own_host_.get());
  }
  staging_ = make_device_memory(workspace_.staging());
  counter_ = make_device_memory(workspace_.counter);
  scratch_ = make_device_memory(workspace_.scratch);
  finished_memory_ = make_pinned_memory(static_cast<int64_t>(sizeof(FinishedWord)) * slots_);
  metrics_memory_ = make_pinned_memory(int64_t{sizeof(float)} * kMostMetrics * slots_);
  position_memory_ = make_pinned_memory(sizeof(PositionWord));
  printed_memory_ = make_pinned_memory(StepProgram::printed_bytes(program_) * slots_);
  cuda_check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  finished_slots_ = static_cast<const FinishedWord*>(finished_memory_.get());
  position_ = static_cast<const PositionWord*>(position_memory_.get());
  step_of_slot_.resize(static_cast<size_t>(slots_));
  copy_ = make_stream(true);
  copied_ = make_event();
}

/// A kernel is loaded at its first launch, which may wait until the device is idle. That deadlocks if another rank
/// waits for that kernel. So a rank with peers first runs each of its kernels once, without them. A replay does the
/// same, since ranks wait for it.
void CudaExecutor::rehearse() {
  if (!peers_ && options_.replays == nullptr) return;
  step_->rehearse();
  synchronize();
  cuda_check(cudaMemsetAsync(counter_.get(), 0, sizeof(StepCounter), step_->compute()), "cudaMemsetAsync");
  std::memset(finished_memory_.get(), 0, sizeof(FinishedWord) * static_cast<size_t>(slots_));
  std::memset(position_memory_.get(), 0, sizeof(PositionWord));
}

std::unique_ptr<Executor> CudaExecutor::beside(const Program& program, const ExecutorOptions& options) {
  use_device();
  synchronize();
  std::unique_ptr<CudaCommunicator> peers;
  if (needs_peers(program)) peers = std::make_unique<CudaCommunicator>(program, ranks_, cuda_.device, nullptr);
  use_device();
  return std::make_unique<CudaExecutor>(program, ranks_, options, cuda_, std::move(peers), this);
}

HostBlock CudaExecutor::allocate_inputs(int64_t bytes) {
  check(bytes == inputs_.bytes, "inputs must have the size of inputs()");
  use_device();
  return blocks_.allocate(stride_);
}

void CudaExecutor::start_step(const std::byte* inputs, const StepScalars& scalars) {
  check(started_ - finished_ < static_cast<uint64_t>(slots_), "more steps are in flight than there are slots");
  watchdog_->throw_if_given_up();
  const NvtxRange range("step");
  at_step(scalars.step, [&] {
    send_inputs(inputs, scalars);
    watchdog_->step_started();
    if (block_bytes_ > 0) ranks_.exchanged_tokens(block_bytes_);
    enqueue_step(scalars.step);
  });
  step_of_slot_[started_ % static_cast<uint64_t>(slots_)] = scalars.step;
  ++started_;
}

/// Copies the inputs and scalars of a step to its slot of the staging memory. The slot is free because its last step is
/// finished. The block of inputs may be used again when this step is finished.
void CudaExecutor::send_inputs(const std::byte* inputs, const StepScalars& scalars) {
  const auto slot = static_cast<size_t>(started_ % static_cast<uint64_t>(slots_));
  std::byte* block = blocks_.sendable(inputs, workspace_.scalars, stride_, static_cast<int>(slot), slots_);
  std::memcpy(block + workspace_.scalars, &scalars, sizeof(scalars));
  auto* to = static_cast<std::byte*>(staging_.get()) + static_cast<int64_t>(slot) * stride_;
  cuda_check(cudaMemcpyAsync(to, block, static_cast<size_t>(stride_), cudaMemcpyHostToDevice, copy_.get()),
             "cudaMemcpyAsync of the inputs");
  cuda_check(cudaEventRecord(copied_.get(), copy_.get()), "cudaEventRecord");
}

/// Enqueues a step as part of a graph, or instruction by instruction: the first step, timed steps, and steps that leave
/// out or record instructions.
void CudaExecutor::enqueue_step(uint32_t step) {
  const bool first = started_ == 0;
  const bool timed = times_.wants(step);
  const bool left_out = options_.left_out && options_.left_out->step == step;
  const Clock::time_point now = Clock::now();
  const bool late = now - last_start_ > kLate;
  last_start_ = now;
  const bool recorded = std::exchange(records_next_, false);
  if (!first && !timed && !left_out && !recorded && graphs_->in_use()) {
    graphs_->capture();
    ++waiting_;
    if (waiting_ >= graphs_->at_once() || late) enqueue_waiting();
    return;
  }
  enqueue_waiting();
  if (timed) {
    synchronize();
    times_.collect();  // the times of an earlier step, before this one overwrites them
    times_.begin(step, *step_, copy_.get());
  }
  StepProgram::Issue how;
  how.while_waiting = [this] { watchdog_->throw_if_given_up(); };
  if (first) how.on_communication = &options_.on_communication;
  if (timed) how.times = &times_.events();
  if (left_out) how.left_out = options_.left_out->instruction;
  how.tape = options_.replays;
  if (recorded) {
    recorder_->begin(step_->compute());
    how.tape = &recorder_->tape();
  }
  wait_for_inputs();
  if (timed && !first && !left_out && !recorded && graphs_->in_use()) return graphs_->enqueue_timed(how);
  step_->issue(how);
}

void CudaExecutor::enqueue_waiting() {
  if (waiting_ == 0) return;
  wait_for_inputs();
  graphs_->enqueue(waiting_);
  waiting_ = 0;
}

void CudaExecutor::wait_for_inputs() {
  cuda_check(cudaStreamWaitEvent(step_->compute(), copied_.get()), "cudaStreamWaitEvent");
}

float CudaExecutor::finish_step(std::span<float> metrics) {
  check(finished_ < started_, "only a started step can be finished");
  const int slot = static_cast<int>(finished_ % static_cast<uint64_t>(slots_));
  const uint32_t step = step_of_slot_[static_cast<size_t>(slot)];
  if (started_ - finished_ == static_cast<uint64_t>(waiting_)) at_step(step, [&] { enqueue_waiting(); });
  wait_for(finished_ + 1);
  const auto loss = std::bit_cast<float>(static_cast<uint32_t>(finished_slots_[slot]));
  check(metrics.empty() || metrics.size() == program_.metrics.size(),
        "the report must have a slot for each metric "
        "of a step");
  const float* of_slot = static_cast<const float*>(metrics_memory_.get()) + slot * kMostMetrics;
  std::copy(of_slot, of_slot + metrics.size(), metrics.begin());
  if (options_.print) print(slot);
  times_.finish(step);
  watchdog_->step_finished(step + 1);
  ++finished_;
  return loss;
}

/// The device reports a finished step through pinned memory. After a device error it cannot; then the driver is
/// queried.
void CudaExecutor::wait_for(uint64_t step) {
  constexpr std::chrono::microseconds kSpin{200}, kNap{50};
  const FinishedWord& slot = finished_slots_[(step - 1) % static_cast<uint64_t>(slots_)];
  const Clock::time_point start = Clock::now();
  while (slot >> 32 != (step & 0xffffffffu)) {
    const auto waited = Clock::now() - start;
    if (waited < kSpin) continue;
    watchdog_->throw_if_given_up();
    const cudaError_t status = cudaStreamQuery(step_->compute());
    if (status != cudaSuccess && status != cudaErrorNotReady) {
      failed("step " + std::to_string(step_of_slot_[(step - 1) % static_cast<uint64_t>(slots_)] + 1),
             std::string(cudaGetErrorString(status)) + " (" + cudaGetErrorName(status) + ")");
    }
    std::this_thread::sleep_for(kNap);
  }
  std::atomic_thread_fence(std::memory_order_acquire);
}

void CudaExecutor::print(int slot) {
  const auto* printed =
      static_cast<const std::byte*>(printed_memory_.get()) + slot * StepProgram::printed_bytes(program_);
  for (size_t i = 0; i < program_.instructions.size(); ++i) {
    const Instruction& instruction = program_.instructions[i];
    if (instruction.opcode != Opcode::print) continue;
    options_.print(instruction.inputs[0], printed + step_->printed_offset(i), instruction.micro_batch);
  }
}

void CudaExecutor::synchronize() {
  const cudaError_t status = cudaStreamSynchronize(step_->compute());
  if (watchdog_) watchdog_->throw_if_given_up();
  if (status != cudaSuccess) {
    failed(started_ == 0 ? "loading" : "its steps",
           std::string(cudaGetErrorString(status)) + " (" + cudaGetErrorName(status) + ")");
  }
}

void CudaExecutor::use_device() const { cuda_check(cudaSetDevice(cuda_.device), "cudaSetDevice"); }

void CudaExecutor::notice(const std::string& line) const {
  if (cuda_.notice) return cuda_.notice(line);
  std::fprintf(stderr, "rank %d: %s\n", program_.rank, line.c_str());
}

void CudaExecutor::failed(const std::string& what, const std::string& error) const {
  if (started_ > 0) device_is_lost = true;
  if (watchdog_) watchdog_->throw_if_given_up();
  const int gpu = cuda_.gpu >= 0 ? cuda_.gpu : cuda_.device;
  std::string text =
      "rank " + std::to_string(program_.rank) + " (gpu " + std::to_string(gpu) + "): " + what + ": " + error;
  const uint64_t word = position_ == nullptr ? 0 : *position_;
  const auto instruction = static_cast<size_t>(word & 0xffffffffu);
  if (instruction > 0 && instruction < program_.instructions.size()) {
    text += "\n  last position reported: " + program_.instructions[instruction].name + " at step " +
            std::to_string(word >> 32);
  }
  if (started_ > 0 && !launches_block()) text += "\n  run with CUDA_LAUNCH_BLOCKING=1 to find the instruction";
  throw EnvError(text);
}

}  // namespace cuda

void begin_cuda(int device) {
  std::thread([device] { cudaSetDevice(device); }).detach();
}

std::unique_ptr<Executor> make_cuda_executor(const Program& program, Communicator& ranks,
                                             const ExecutorOptions& options, const CudaExecutorOptions& cuda) {
  std::unique_ptr<cuda::CudaCommunicator> peers;  // NCCL starts in the background, during all that follows
  if (cuda::needs_peers(program) && options.replays == nullptr) {
    peers = std::make_unique<cuda::CudaCommunicator>(program, ranks, cuda.device, options.start_up);
  }
  cuda_check(cudaSetDevice(cuda.device), "cudaSetDevice");
  cuda::require_kernels_for_device();
  phase_ended(options.start_up, "CUDA");
  return std::make_unique<cuda::CudaExecutor>(program, ranks, options, cuda, std::move(peers));
}

}  // namespace trainctl
