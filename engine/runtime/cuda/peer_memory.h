// Memory of GPUs in other processes of this host, mapped to addresses that this process's GPU can access.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace trainctl::cuda {

/// A handle to an allocation that a process sends to others: a whole one, as from cudaMalloc.
class SharedAllocation {
 public:
  SharedAllocation() = default;
  /// An allocation that cannot be exported gives a handle that no process can open.
  explicit SharedAllocation(void* base);

 private:
  friend class PeerMemory;
  char host_[40] = {};    ///< its boot id; empty: not exported
  uint64_t process_ = 0;  ///< unique on the host
  cudaIpcMemHandle_t handle_{};
};

/// Another process's allocation, mapped while this object lives. Not for allocations of this process: if ranks are
/// threads, one that waits for another may hold a CUDA lock that the other needs.
class PeerMemory {
 public:
  /// Stays closed if the current device cannot reach it: another host, no peer access.
  explicit PeerMemory(const SharedAllocation& theirs);
  ~PeerMemory();
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  std::byte* base() const { return base_; }  ///< null: closed

 private:
  std::byte* base_ = nullptr;
};

}  // namespace trainctl::cuda
