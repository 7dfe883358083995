// Memory of GPUs that other processes of this host use, as addresses that this process's GPU reads and writes.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace trainctl::cuda {

/// What a process tells others of an allocation: the whole of one, as cudaMalloc made it.
class SharedAllocation {
 public:
  SharedAllocation() = default;
  /// Of memory that cannot be shared nobody opens anything.
  explicit SharedAllocation(void* base);

 private:
  friend class PeerMemory;
  char host_[40] = {};    ///< its boot; empty: not shared
  uint64_t process_ = 0;  ///< as all of the host's are told apart
  cudaIpcMemHandle_t handle_{};
};

/// Another process's allocation, open as long as this lives. Not one of this process: where ranks are threads, one that
/// waits for another may hold a lock of CUDA that the other needs.
class PeerMemory {
 public:
  /// Not open where the current device cannot reach it: other hosts, no peer access.
  explicit PeerMemory(const SharedAllocation& theirs);
  ~PeerMemory();
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  std::byte* base() const { return base_; }  ///< null: not open

 private:
  std::byte* base_ = nullptr;
};

}  // namespace trainctl::cuda
