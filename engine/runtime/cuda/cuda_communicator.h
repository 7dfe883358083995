// Collectives and messages between GPUs, enqueued on streams: by their copy engines (copy_engines.h) where those are
// better and reach, by NCCL else. Nothing here waits but the constructor and connect().
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "engine/runtime/comm/nccl_communicator.h"
#include "engine/runtime/cuda/copy_engines.h"

namespace trainctl::cuda {

class CudaCommunicator {
 public:
  /// As NcclCommunicator's, which begins here and goes on by itself. All must outlive it.
  CudaCommunicator(const Program& program, Communicator& ranks, int device, StartUpClock* start_up = nullptr)
      : program_(program), ranks_(ranks), device_(device), nccl_(program, ranks, device, start_up) {}

  /// Collective, once, before anything else; on a thread that has made the device current, when all kernels of this
  /// rank are loaded. `arena` is where the program's operands lie, an allocation of its own. EnvError where NCCL fails,
  /// CommError where a rank is gone meanwhile.
  void connect(std::byte* arena, StartUpClock* start_up = nullptr) {
    nccl_.connect(start_up);
    copies_ = std::make_unique<CopyEngines>(program_, ranks_, device_, arena);
    phase_met_others(start_up, "copy engines");
  }

  /// One of the program's collectives; `move` is as bind_move() says it, or has a smaller count. Safe while capturing.
  void collective(const Instruction& instruction, const BoundMove& move, CudaStream stream) const {
    if (copies_->takes(instruction, move)) return copies_->enqueue(instruction, move, stream);
    nccl_.collective(instruction, move, stream);
  }
  /// Whether copy engines make it.
  bool copies(const Instruction& instruction, const BoundMove& move) const { return copies_->takes(instruction, move); }
  /// Ends when the peer has taken it.
  void send(int peer, const void* data, int64_t bytes, CudaStream stream) const {
    nccl_.send(peer, data, bytes, stream);
  }
  void recv(int peer, void* data, int64_t bytes, CudaStream stream) const { nccl_.recv(peer, data, bytes, stream); }

  /// What went wrong on the way, if anything. Any thread.
  std::optional<std::string> async_error() const { return nccl_.async_error(); }
  /// Ends everything that is enqueued, at once and for good. Does not wait for it, and gives nothing back: the process
  /// is to end. Any thread.
  void abort() {
    copies_->abort();
    nccl_.abort();
  }

 private:
  const Program& program_;
  Communicator& ranks_;
  const int device_;
  NcclCommunicator nccl_;
  std::unique_ptr<CopyEngines> copies_;
};

}  // namespace trainctl::cuda
