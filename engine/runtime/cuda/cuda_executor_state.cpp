// Accesses the arena of a GPU between steps: reads, writes, copies of the state for checkpoints, and recordings of
// steps.
#include "engine/runtime/cuda/cuda_executor_class.h"
#include "engine/runtime/tape_layout.h"

namespace trainctl::cuda {

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

/// Memory that cannot be pinned, because of a limit or because it is pinned already, is copied without pinning.
void CudaExecutor::use_often(std::span<std::byte> memory) {
  use_device();
  if (cudaHostRegister(memory.data(), memory.size(), cudaHostRegisterPortable) == cudaSuccess) {
    registered_.push_back(memory.data());
  } else {
    cudaGetLastError();
  }
}

/// Copies on the stream of the inputs, for which the step waits.
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

std::unique_ptr<StepTape> CudaExecutor::make_tape() { return std::make_unique<StepTape>(lay_out_tape(program_)); }

void CudaExecutor::open_tape(StepTape& tape) {
  finish_all_started();
  recorder_ = std::make_unique<StepRecorder>(RankMemory(arena_, host_), tape);
  // Loads the kernels now, which may wait until the device is idle. No recorded step waits for that then.
  recorder_->begin(step_->compute());
  recorder_->end(step_->compute());
  recorder_->is_done(true);
}

void CudaExecutor::begin_record(StepTape& tape) {
  check(recorder_ != nullptr && &recorder_->tape() == &tape, "steps are recorded on the tape that was opened");
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

void CudaExecutor::load_tape() {
  check(replay_ != nullptr, "an executor that replays has a tape");
  use_device();
  replay_->load(step_->compute());
}

std::vector<uint64_t> CudaExecutor::tape_digests() {
  use_device();
  if (replay_ != nullptr) return replay_->digests(step_->compute());
  check(recorder_ != nullptr, "an executor that records has a tape");
  return recorder_->digests();
}

void CudaExecutor::fetch(const std::byte* from, void* to, int64_t bytes) {
  use_device();
  cuda_check(cudaMemcpy(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault), "cudaMemcpy from the tape");
}

}  // namespace trainctl::cuda
