// Collectives and messages between GPUs, enqueued on streams: nothing here waits but the constructor and connect().
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
  /// Collective over all ranks of the job, which meet over `ranks`. Then a thread of its own opens all groups that the
  /// programs use, on `device`, while the caller does something else: NCCL needs a second or more for it, and no rank
  /// gets through before all have come. `start_up` (may be null) is told of what the caller waited for.
  NcclCommunicator(const Program& program, Communicator& ranks, int device, StartUpClock* start_up = nullptr);
  /// Waits for the thread, and connects the ranks. Before anything else, on a thread that has made the device current,
  /// once all kernels of this rank are loaded. EnvError where NCCL fails, CommError where a rank is gone meanwhile.
  void connect(StartUpClock* start_up = nullptr);
  /// Nothing is enqueued any more. NCCL waits here until the graphs that were captured from it are gone.
  ~NcclCommunicator();
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  /// One of the program's collectives, with operands as bind_move() says them. Safe while capturing.
  void collective(const Instruction& instruction, const BoundMove& move, CudaStream stream) const;
  /// Ends when the peer has taken it.
  void send(int peer, const void* data, int64_t bytes, CudaStream stream) const;
  void recv(int peer, void* data, int64_t bytes, CudaStream stream) const;

  /// What went wrong on the way, if anything. Any thread.
  std::optional<std::string> async_error() const;
  /// Ends everything that is enqueued, at once and for good. Does not wait for it, and gives nothing back: the process
  /// is to end. Any thread.
  void abort();

 private:
  struct Opened {
    ncclComm_t world = nullptr;
    std::map<NcclGroup, ncclComm_t> groups;
    StartUpClock start_up;
  };
  /// What the thread needs, and nothing of ours: where this rank fails meanwhile, nobody waits for it any more.
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
  void all_to_all(ncclComm_t comm, int64_t size, const BoundMove& move, CudaStream stream) const;
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
