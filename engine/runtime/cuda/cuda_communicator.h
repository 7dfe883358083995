// Collectives and messages between GPUs, enqueued on streams: by copy engines (copy_engines.h) where they apply, else
// by NCCL. Only the constructor and connect() wait.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/runtime/comm/nccl_communicator.h"
#include "engine/runtime/cuda/copy_engines.h"

namespace trainctl::cuda {

class CudaCommunicator {
 public:
  /// Starts an NcclCommunicator, which opens in the background. The arguments must outlive this object.
  CudaCommunicator(const Program& program, Communicator& ranks, int device, StartUpClock* start_up = nullptr)
      : program_(program), ranks_(ranks), device_(device), nccl_(program, ranks, device, start_up) {}

  /// Collective, once, before anything else; on a thread with the device current, when all kernels of this rank are
  /// loaded. `arena` holds the program's operands and is a separate allocation. Throws EnvError if NCCL fails,
  /// CommError if a rank is lost meanwhile. `copies`: whether copy engines are used; the same on all ranks.
  void connect(std::byte* arena, bool copies, StartUpClock* start_up = nullptr) {
    nccl_.connect(start_up);
    if (!copies) return;
    copies_ = std::make_unique<CopyEngines>(program_, ranks_, device_, arena);
    phase_ended_together(start_up, "copy engines");
  }

  /// One of the program's collectives; `move` is as from bind_move(), or has a smaller count. Safe while capturing.
  void collective(const Instruction& instruction, const BoundMove& move, CudaStream stream) const {
    if (this->copies(instruction, move)) return copies_->enqueue(instruction, move, stream);
    nccl_.collective(instruction, move, stream);
  }
  /// An all_to_all that moves only rows, whose counts all members know. Not while capturing.
  void all_to_all_rows(const Instruction& instruction, const BoundMove& move, const CountedRows& rows,
                       CudaStream stream) const;
  /// Returns whether copy engines run it.
  bool copies(const Instruction& instruction, const BoundMove& move) const {
    return copies_ && copies_->takes(instruction, move);
  }
  /// Completes when the peer has received it.
  void send(int peer, const void* data, int64_t bytes, CudaStream stream) const {
    nccl_.send(peer, data, bytes, stream);
  }
  void recv(int peer, void* data, int64_t bytes, CudaStream stream) const { nccl_.recv(peer, data, bytes, stream); }

  /// The first asynchronous error, if any. Any thread.
  std::optional<std::string> async_error() const { return nccl_.async_error(); }
  /// Ends everything that is enqueued, at once and for good. Does not wait for that and frees nothing: the process must
  /// end. Any thread.
  void abort() {
    if (copies_) copies_->abort();
    nccl_.abort();
  }

 private:
  const Program& program_;
  Communicator& ranks_;
  const int device_;
  NcclCommunicator nccl_;
  std::unique_ptr<CopyEngines> copies_;
};

inline void CudaCommunicator::all_to_all_rows(const Instruction& instruction, const BoundMove& move,
                                              const CountedRows& rows, CudaStream stream) const {
  const std::vector<int>& ranks = program_.groups[static_cast<size_t>(instruction.group)];
  const auto p = static_cast<int64_t>(ranks.size());
  int64_t bytes = 0;
  for (int64_t from = 0; from < p; ++from)
    for (int64_t to = 0; to < p; ++to) {
      const int64_t elements = rows.elements(p, from, to);
      if (elements < 0 || elements > move.count)
        throw EnvError("rank " + std::to_string(ranks[static_cast<size_t>(from)]) + " has " +
                       std::to_string(elements / rows.row) + " rows for rank " +
                       std::to_string(ranks[static_cast<size_t>(to)]) + ", but a block has " +
                       std::to_string(move.count / rows.row) +
                       "; increase the layer's capacity, or set parallel.expert_method: gather");
      if (from != to) bytes += elements * byte_size(move.dtype);
    }
  if (ranks.front() == program_.rank) ranks_.exchanged_tokens(bytes);
  if (this->copies(instruction, move)) return copies_->enqueue(instruction, move, stream, &rows);
  nccl_.collective(instruction, move, stream, &rows);
}

}  // namespace trainctl::cuda
