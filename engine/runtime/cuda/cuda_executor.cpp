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
#include <deque>
#include <numeric>
#include <thread>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/text.h"
#include "engine/ops/small_step/cluster_limits_cuda.h"
#include "engine/runtime/cuda/byte_tables.h"
#include "engine/runtime/cuda/devices.h"
#include "engine/runtime/cuda/initial_weights_cuda.h"
#include "engine/runtime/cuda/input_blocks.h"
#include "engine/runtime/cuda/nvtx_range.h"
#include "engine/runtime/cuda/require_kernels.h"
#include "engine/runtime/cuda/state_copier.h"
#include "engine/runtime/cuda/step_graphs.h"
#include "engine/runtime/cuda/step_program.h"
#include "engine/runtime/cuda/step_recorder.h"
#include "engine/runtime/cuda/step_times.h"
#include "engine/runtime/cuda/watchdog.h"
#include "engine/runtime/workspace.h"

namespace trainctl {

std::optional<int> cuda_version_of_build() { return CUDART_VERSION; }

namespace cuda {
namespace {

bool needs_peers(const Program& program) {
  return std::any_of(program.instructions.begin(), program.instructions.end(), [](const Instruction& i) {
    return i.opcode == Opcode::collective || i.opcode == Opcode::send || i.opcode == Opcode::recv;
  });
}

bool launches_block() {
  const char* text = std::getenv("CUDA_LAUNCH_BLOCKING");
  return text != nullptr && std::strcmp(text, "1") == 0;
}

using Clock = std::chrono::steady_clock;
/// A step that starts this long after the previous one is not held back: other ranks may wait for it.
constexpr std::chrono::milliseconds kLate{10};

class CudaExecutor final : public Executor {
 public:
  /// `peers` is opening and not yet connected; null if the rank has no peers. `owner`: of beside()'s arena.
  CudaExecutor(const Program& program, Communicator& ranks, const ExecutorOptions& options,
               const CudaExecutorOptions& cuda, std::unique_ptr<CudaCommunicator> peers,
               const CudaExecutor* owner = nullptr);
  ~CudaExecutor() override;

  void start_step(const std::byte* inputs, const StepScalars& scalars) override;
  float finish_step(std::span<float> metrics) override;
  int max_in_flight() const override { return slots_; }
  std::unique_ptr<Executor> beside(const Program& program, const ExecutorOptions& options) override;
  HostBlock allocate_inputs(int64_t bytes) override;
  const InputLayout& inputs() const override { return inputs_; }
  void read(int64_t offset, void* to, int64_t bytes) override;
  void write(int64_t offset, const void* from, int64_t bytes) override;
  void use_often(std::span<std::byte> memory) override;
  void begin_write(int64_t offset, const void* from, int64_t bytes) override;
  void begin_read(int64_t offset, void* to, int64_t bytes) override;
  void wait_read() override;
  void prepare_copy(const std::vector<StateCopy>& copies, std::byte* to) override;
  void begin_copy() override;
  bool is_copied(bool wait) override;
  std::unique_ptr<StepTape> make_tape() override;
  void begin_record(StepTape& tape) override;
  void end_record() override;
  bool is_recorded(bool wait) override;

 private:
  void allocate();
  void rehearse();
  void send_inputs(const std::byte* inputs, const StepScalars& scalars);
  template <class Enqueue>
  void at_step(uint32_t step, const Enqueue& enqueue);
  void enqueue_step(uint32_t step);
  void enqueue_waiting();
  void wait_for_inputs();
  void finish_all_started();
  void print(int slot);
  void wait_for(uint64_t step);
  void synchronize();
  void use_device() const;
  void notice(const std::string& line) const;
  /// Throws EnvError with the place of the failure; throws CommError if that is the cause.
  [[noreturn]] void failed(const std::string& what, const std::string& error) const;

  const Program& program_;
  Communicator& ranks_;
  const ExecutorOptions options_;
  const CudaExecutorOptions cuda_;
  const SampleTables tables_;
  const ByteTables byte_tables_;
  const InputLayout inputs_;
  const Workspace workspace_;
  const int64_t stride_;  ///< bytes per slot of the staging memory
  const int slots_;

  bool is_inside(int64_t offset, int64_t bytes) const {
    const int64_t end = is_host_offset(offset) ? kHostOffset + host_bytes_ : arena_bytes_;
    return offset >= 0 && bytes >= 0 && offset + bytes <= end;
  }
  std::byte* at(int64_t offset) const { return RankMemory(arena_, host_).at(offset); }

  int64_t arena_bytes_;
  std::byte* arena_ = nullptr;
  int64_t host_bytes_;         ///< kept in the memory of the host
  std::byte* host_ = nullptr;  ///< pinned
  DeviceMemory own_arena_, staging_, counter_, scratch_;
  PinnedMemory own_host_, finished_memory_, metrics_memory_, position_memory_, printed_memory_;
  const FinishedWord* finished_slots_ = nullptr;
  const PositionWord* position_ = nullptr;
  InputBlocks blocks_;
  Stream copy_;
  Event copied_;  ///< the inputs of all started steps are in the staging memory

  std::unique_ptr<CudaCommunicator> peers_;
  std::unique_ptr<StepProgram> step_;
  std::unique_ptr<StepGraphs> graphs_;
  int waiting_ = 0;  ///< started, but not enqueued
  Clock::time_point last_start_;
  StepTimes times_;
  std::unique_ptr<Watchdog> watchdog_;
  uint64_t started_ = 0, finished_ = 0;  ///< steps
  std::vector<uint32_t> step_of_slot_;   ///< StepScalars::step
  std::unique_ptr<StateCopier> copier_;
  std::unique_ptr<StepRecorder> recorder_;
  bool records_next_ = false;
  std::vector<std::byte*> registered_;  ///< memory of others that is pinned
  std::deque<Event> reads_;             ///< each is done when its bytes have arrived
};

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

/// The minimum over the current device and `others`.
ClusterCounts clusters_of_all(const std::vector<int>& others) {
  ClusterCounts least = count_clusters();
  if (others.empty()) return least;
  int current = 0;
  cuda_check(cudaGetDevice(&current), "cudaGetDevice");
  for (const int device : others) {
    cuda_check(cudaSetDevice(device), "cudaSetDevice");
    const ClusterCounts counts = count_clusters();
    for (size_t i = 0; i < least.size(); ++i) least[i] = std::min(least[i], counts[i]);
  }
  cuda_check(cudaSetDevice(current), "cudaSetDevice");
  return least;
}

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
  int at_once = steps_of_graph(slots_, program);
  if (peers_) {
    at_once = least_of_all(ranks, std::array<int32_t, 1>{at_once})[0];
    limit_clusters(least_of_all(ranks, clusters_of_all(cuda.alike)));
  } else if (!cuda.alike.empty()) {
    limit_clusters(clusters_of_all(cuda.alike));
  }
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
  if (peers_ || options.replays != nullptr) memory.position = static_cast<PositionWord*>(position_memory_.get());
  memory.printed = static_cast<std::byte*>(printed_memory_.get());
  memory.printed_stride = StepProgram::printed_bytes(program);
  step_ = std::make_unique<StepProgram>(program, memory, inputs_, tables_, byte_tables_, peers_.get(), options.seed,
                                        options.on_prepared);
  rehearse();
  phase_ended(options.start_up, "kernels");
  // The copy engines map an arena once.
  if (peers_) peers_->connect(memory.arena, owner == nullptr, options.start_up);
  // The rehearsal, and libraries that time their kernels, have left values in the arena.
  cuda_check(cudaMemsetAsync(memory.arena, 0, static_cast<size_t>(arena_bytes_), step_->compute()), "cudaMemsetAsync");
  enqueue_initial_weights(program, options.seed, {memory.arena, memory.host}, step_->compute());
  synchronize();
  if (owner == nullptr && host_bytes_ > 0) std::memset(host_, 0, static_cast<size_t>(host_bytes_));
  phase_ended(options.start_up, "weights");
  watchdog_ = std::make_unique<Watchdog>(program, ranks, peers_.get(), position_, cuda.timeout_seconds);
  StepGraphs::Options graphs;
  graphs.in_use = cuda.graph && !launches_block() && options.replays == nullptr;
  graphs.at_once = at_once;
  graphs.settle = [this] { synchronize(); };
  graphs.notice = [this](const std::string& line) { notice(line); };
  graphs.start_up = options.start_up;
  graphs_ = std::make_unique<StepGraphs>(*step_, *watchdog_, std::move(graphs));
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
/// waits for that kernel. So a rank with peers first runs all its kernels without them. A replay does the same, since
/// ranks wait for it.
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

/// Adds the step to an error of `enqueue`.
template <class Enqueue>
void CudaExecutor::at_step(uint32_t step, const Enqueue& enqueue) {
  try {
    enqueue();
  } catch (const CommError&) {
    throw;
  } catch (const EnvError& error) {
    failed("step " + std::to_string(step + 1), error.what());
  }
}

void CudaExecutor::start_step(const std::byte* inputs, const StepScalars& scalars) {
  check(started_ - finished_ < static_cast<uint64_t>(slots_), "more steps are in flight than there are slots");
  watchdog_->throw_if_given_up();
  const NvtxRange range("step");
  at_step(scalars.step, [&] {
    send_inputs(inputs, scalars);
    watchdog_->step_started();
    enqueue_step(scalars.step);
  });
  step_of_slot_[started_ % static_cast<uint64_t>(slots_)] = scalars.step;
  ++started_;
}

/// The slot is free: its last step is finished. The block is free again when this step is finished.
void CudaExecutor::send_inputs(const std::byte* inputs, const StepScalars& scalars) {
  const auto slot = static_cast<size_t>(started_ % static_cast<uint64_t>(slots_));
  std::byte* block = blocks_.sendable(inputs, workspace_.scalars, stride_, static_cast<int>(slot), slots_);
  std::memcpy(block + workspace_.scalars, &scalars, sizeof(scalars));
  auto* to = static_cast<std::byte*>(staging_.get()) + static_cast<int64_t>(slot) * stride_;
  cuda_check(cudaMemcpyAsync(to, block, static_cast<size_t>(stride_), cudaMemcpyHostToDevice, copy_.get()),
             "cudaMemcpyAsync of the inputs");
  cuda_check(cudaEventRecord(copied_.get(), copy_.get()), "cudaEventRecord");
}

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
  if (first) how.on_communication = &options_.on_communication;
  if (timed) how.times = &times_.events();
  if (left_out) how.left_out = options_.left_out->instruction;
  how.tape = options_.replays;
  if (recorded) how.tape = &recorder_->begin(step_->compute());
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

/// Waits for all started steps, before anything but a step accesses the arena.
void CudaExecutor::finish_all_started() {
  use_device();
  at_step(step_of_slot_[static_cast<size_t>(finished_) % step_of_slot_.size()], [&] { enqueue_waiting(); });
  synchronize();
}

void CudaExecutor::read(int64_t offset, void* to, int64_t bytes) {
  check(is_inside(offset, bytes), "reads must stay inside the arena");
  finish_all_started();
  cuda_check(cudaMemcpy(to, at(offset), static_cast<size_t>(bytes), cudaMemcpyDefault), "cudaMemcpy from the arena");
}

void CudaExecutor::write(int64_t offset, const void* from, int64_t bytes) {
  check(is_inside(offset, bytes), "writes must stay inside the arena");
  finish_all_started();
  // The copy runs on the default stream, for which the step's streams do not wait.
  cuda_check(cudaMemcpyAsync(at(offset), from, static_cast<size_t>(bytes), cudaMemcpyDefault, step_->compute()),
             "cudaMemcpy into the arena");
  synchronize();
}

/// Memory that cannot be pinned, because of a limit or since others have done it, is copied as it is.
void CudaExecutor::use_often(std::span<std::byte> memory) {
  use_device();
  if (cudaHostRegister(memory.data(), memory.size(), cudaHostRegisterPortable) == cudaSuccess) {
    registered_.push_back(memory.data());
  } else {
    cudaGetLastError();
  }
}

/// On the stream of the inputs, for which the step waits.
void CudaExecutor::begin_write(int64_t offset, const void* from, int64_t bytes) {
  check(is_inside(offset, bytes), "writes must stay inside the arena");
  check(started_ == finished_, "a step must be finished before its outputs are written");
  cuda_check(cudaMemcpyAsync(at(offset), from, static_cast<size_t>(bytes), cudaMemcpyDefault, copy_.get()),
             "cudaMemcpy into the arena");
}

void CudaExecutor::begin_read(int64_t offset, void* to, int64_t bytes) {
  check(is_inside(offset, bytes), "reads must stay inside the arena");
  check(started_ == finished_, "a step must be finished before its outputs are read");
  cuda_check(cudaMemcpyAsync(to, at(offset), static_cast<size_t>(bytes), cudaMemcpyDefault, copy_.get()),
             "cudaMemcpy from the arena");
  reads_.push_back(make_event());
  cuda_check(cudaEventRecord(reads_.back().get(), copy_.get()), "cudaEventRecord");
}

void CudaExecutor::wait_read() {
  check(!reads_.empty(), "a read has begun before it is waited for");
  cuda_check(cudaEventSynchronize(reads_.front().get()), "cudaEventSynchronize");
  reads_.pop_front();
}

void CudaExecutor::prepare_copy(const std::vector<StateCopy>& copies, std::byte* to) {
  use_device();
  copier_ = std::make_unique<StateCopier>(RankMemory(arena_, host_), copies, to);
}

void CudaExecutor::begin_copy() {
  check(copier_ != nullptr, "a copy of the state is prepared before it begins");
  use_device();
  at_step(step_of_slot_[static_cast<size_t>(finished_) % step_of_slot_.size()], [&] {
    enqueue_waiting();
    copier_->begin(step_->compute());
  });
}

bool CudaExecutor::is_copied(bool wait) {
  use_device();
  return copier_->is_done(wait);
}

std::unique_ptr<StepTape> CudaExecutor::make_tape() {
  use_device();
  std::unique_ptr<StepTape> tape = new_tape(program_);
  recorder_ = std::make_unique<StepRecorder>(RankMemory(arena_, host_), *tape);
  return tape;
}

void CudaExecutor::begin_record(StepTape& tape) {
  check(recorder_ != nullptr && &recorder_->tape() == &tape, "steps are recorded on the last tape that was made");
  records_next_ = true;
}

void CudaExecutor::end_record() {
  check(recorder_ != nullptr && !records_next_, "the recorded step has started");
  use_device();
  at_step(step_of_slot_[static_cast<size_t>(finished_) % step_of_slot_.size()], [&] {
    enqueue_waiting();
    recorder_->end(step_->compute());
  });
}

bool CudaExecutor::is_recorded(bool wait) {
  use_device();
  return recorder_ == nullptr || recorder_->is_done(wait);
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
    text += "\n  last communication reached: " + program_.instructions[instruction].name + " at step " +
            std::to_string(word >> 32);
  }
  if (started_ > 0 && !launches_block()) text += "\n  run with CUDA_LAUNCH_BLOCKING=1 to find the instruction";
  throw EnvError(text);
}

}  // namespace
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
