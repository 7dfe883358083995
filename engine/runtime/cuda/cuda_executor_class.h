// The class of executors that make_cuda_executor returns. cuda_executor.cpp starts and finishes steps;
// cuda_executor_state.cpp reads, writes and copies the arena between steps.
#pragma once
#include <chrono>
#include <cstddef>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/runtime/cuda/byte_tables.h"
#include "engine/runtime/cuda/cuda_communicator.h"
#include "engine/runtime/cuda/cuda_executor.h"
#include "engine/runtime/cuda/handles.h"
#include "engine/runtime/cuda/input_blocks.h"
#include "engine/runtime/cuda/sample_tables.h"
#include "engine/runtime/cuda/state_copier.h"
#include "engine/runtime/cuda/step_graphs.h"
#include "engine/runtime/cuda/step_program.h"
#include "engine/runtime/cuda/step_recorder.h"
#include "engine/runtime/cuda/step_times.h"
#include "engine/runtime/cuda/watchdog.h"
#include "engine/runtime/workspace.h"

namespace trainctl::cuda {

class CudaExecutor final : public Executor {
 public:
  /// `peers` is opening and not yet connected; null if the rank has no peers. `owner`: the owner of the arena, for
  /// beside().
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
  void open_tape(StepTape& tape) override;
  void begin_record(StepTape& tape) override;
  void end_record() override;
  bool is_recorded(bool wait) override;
  void load_tape() override;
  std::vector<uint64_t> tape_digests() override;
  void fetch(const std::byte* from, void* to, int64_t bytes) override;

 private:
  void allocate();
  StepGraphs::Options graph_options();
  StepMemory step_memory() const;
  void clear_memory(bool owns_memory);
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
  int waiting_ = 0;          ///< started, but not enqueued
  int64_t block_bytes_ = 0;  ///< per step: sum of exchanged_block_bytes()
  std::chrono::steady_clock::time_point last_start_;
  StepTimes times_;
  std::unique_ptr<Watchdog> watchdog_;
  uint64_t started_ = 0, finished_ = 0;  ///< steps
  std::vector<uint32_t> step_of_slot_;   ///< StepScalars::step
  std::unique_ptr<StateCopier> copier_;
  std::unique_ptr<StepRecorder> recorder_;
  std::unique_ptr<StepReplay> replay_;  ///< replays the tape ExecutorOptions::replays
  bool records_next_ = false;
  std::vector<std::byte*> registered_;  ///< memory of others that is pinned
  std::deque<Event> reads_;             ///< each is done when its bytes have arrived
};

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

}  // namespace trainctl::cuda
