// Collectives and messages between GPUs, enqueued on streams: nothing here waits but the constructor.
#pragma once

#include <atomic>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/ops/cuda_kernel.h"
#include "engine/runtime/comm/nccl_library.h"
#include "engine/runtime/comm/nccl_splits.h"
#include "engine/runtime/communicator.h"

namespace trainctl {

class NcclCommunicator {
 public:
  /// Collective over all ranks of the job, which meet over `ranks`; each has made its device current. Opens all
  /// groups that the programs use. EnvError where NCCL fails, CommError where a rank does not come.
  NcclCommunicator(const Program& program, Communicator& ranks);
  /// Nothing is enqueued any more. NCCL waits here until the graphs that were captured from it are gone.
  ~NcclCommunicator();
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  /// One of the program's collectives. `count` as the Communicator counts. Safe while capturing.
  void collective(const Instruction& instruction, const void* in, void* out, int64_t count, DType dtype,
                  CudaStream stream) const;
  /// Ends when the peer has taken it.
  void send(int peer, const void* data, int64_t bytes, CudaStream stream) const;
  void recv(int peer, void* data, int64_t bytes, CudaStream stream) const;

  /// What went wrong on the way, if anything. Any thread.
  std::optional<std::string> async_error() const;
  /// Ends everything that is enqueued, at once and for good. Does not wait for it, and gives nothing back: the process
  /// is to end. Any thread.
  void abort();

 private:
  void open_world(Communicator& ranks);
  void open_groups(const std::vector<NcclGroup>& all);
  void connect_channels() const;
  void all_to_all(ncclComm_t comm, int64_t size, const void* in, void* out, int64_t count, DType dtype,
                  CudaStream stream) const;
  ncclComm_t comm_of(const NcclGroup& group) const;

  const NcclLibrary& nccl_;
  const Program& program_;
  int num_ranks_;
  ncclComm_t world_ = nullptr;
  std::map<NcclGroup, ncclComm_t> comms_;
  std::atomic<bool> aborted_{false};
};

}  // namespace trainctl
