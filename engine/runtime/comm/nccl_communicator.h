// Collectives and messages between GPUs, enqueued on streams: only the constructor and connect() wait.
#pragma once

#include <atomic>
#include <future>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/start_up.h"
#include "engine/ops/cuda/cuda_kernel.h"
#include "engine/runtime/bound_operands.h"
#include "engine/runtime/comm/nccl_library.h"
#include "engine/runtime/comm/nccl_splits.h"
#include "engine/runtime/communicator.h"

namespace trainctl {

class NcclCommunicator {
 public:
  /// Collective over all ranks of the job; they exchange ids through `ranks`. Then a thread opens all groups of the
  /// programs on `device` while the caller does other work: NCCL needs a second or more, and no rank gets through
  /// before all have come. `start_up` (may be null) records the time that the caller waited.
  NcclCommunicator(const Program& program, Communicator& ranks, int device, StartUpClock* start_up = nullptr);
  /// Waits for the thread, then connects the ranks. Call it before anything else, on a thread with the device current,
  /// once all kernels of this rank are loaded. Throws EnvError if NCCL fails, CommError if a rank is lost meanwhile.
  void connect(StartUpClock* start_up = nullptr);
  /// After this call, nothing may be enqueued. NCCL waits here until the graphs captured from it are destroyed.
  ~NcclCommunicator();
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  /// One of the program's collectives, with operands as from bind_move(). Safe while capturing. `rows`: the part of
  /// each block that an all_to_all moves; null: all of it.
  void collective(const Instruction& instruction, const BoundMove& move, CudaStream stream,
                  const CountedRows* rows = nullptr) const;
  /// Completes when the peer has received it.
  void send(int peer, const void* data, int64_t bytes, CudaStream stream) const;
  void recv(int peer, void* data, int64_t bytes, CudaStream stream) const;

  /// The first asynchronous error of NCCL, if any. Any thread.
  std::optional<std::string> async_error() const;
  /// Ends everything that is enqueued, at once and for good. Does not wait for that and frees nothing: the process must
  /// end. Any thread.
  void abort();

 private:
  struct Opened {
    ncclComm_t world = nullptr;
    std::map<NcclGroup, ncclComm_t> groups;
    StartUpClock start_up;
  };
  /// State of the thread, with no reference to this object: if this rank fails meanwhile, the thread is abandoned.
  struct Opening {
    const NcclLibrary& nccl;
    int device = 0, rank = 0, num_ranks = 0;
    ncclUniqueId id{};
    std::vector<std::vector<NcclGroup>> splits;

    Opened operator()() const;
    ncclComm_t world() const;
    void split(ncclComm_t world, const std::vector<NcclGroup>& groups, Opened& opened) const;
  };

  ncclUniqueId agree_on_id() const;
  void connect_channels() const;
  void all_to_all(ncclComm_t comm, const std::vector<int>& ranks, const BoundMove& move, const CountedRows* rows,
                  CudaStream stream) const;
  ncclComm_t comm_of(const NcclGroup& group) const;

  const NcclLibrary& nccl_;
  const Program& program_;
  Communicator& ranks_;
  std::future<Opened> opening_;  ///< until connect()
  ncclComm_t world_ = nullptr;
  std::map<NcclGroup, ncclComm_t> comms_;
  std::atomic<bool> aborted_{false};
};

}  // namespace trainctl
