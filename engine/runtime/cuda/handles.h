// Owners of CUDA resources: memory, streams, events, graphs. Each belongs to the device that was current at its
// creation.
#pragma once

#include <cuda_runtime.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>

#include "engine/ops/cuda/launch_cuda.h"

namespace trainctl::cuda {

/// Set once a step cannot end or the device has failed: freeing a resource could then block forever. The process must
/// end, which frees them all.
inline std::atomic<bool> device_is_lost{false};

template <class Handle, cudaError_t (*release)(Handle)>
class Owned {
 public:
  Owned() = default;
  explicit Owned(Handle handle) : handle_(handle) {}
  Owned(Owned&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Owned& operator=(Owned&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Owned() {
    if (handle_ != nullptr && !device_is_lost) release(handle_);
  }
  Handle get() const { return handle_; }
  explicit operator bool() const { return handle_ != nullptr; }

 private:
  Handle handle_ = nullptr;
};

using Event = Owned<cudaEvent_t, cudaEventDestroy>;
using Stream = Owned<cudaStream_t, cudaStreamDestroy>;
using Graph = Owned<cudaGraph_t, cudaGraphDestroy>;
using GraphExec = Owned<cudaGraphExec_t, cudaGraphExecDestroy>;
using DeviceMemory = Owned<void*, cudaFree>;
using PinnedMemory = Owned<void*, cudaFreeHost>;

inline Event make_event() {
  cudaEvent_t event = nullptr;
  cuda_check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate");
  return Event(event);
}

/// Returns true if the work before the event has ended. `wait`: waits for it, so that the answer is true.
inline bool is_done(const Event& event, bool wait) {
  if (wait) cuda_check(cudaEventSynchronize(event.get()), "cudaEventSynchronize");
  const cudaError_t status = cudaEventQuery(event.get());
  if (status == cudaErrorNotReady) return false;
  cuda_check(status, "cudaEventQuery");
  return true;
}

inline Event make_timed_event() {
  cudaEvent_t event = nullptr;
  cuda_check(cudaEventCreate(&event), "cudaEventCreate");
  return Event(event);
}

/// Does not synchronise with the default stream. If two streams have work, the one of higher priority goes first.
inline Stream make_stream(bool high_priority) {
  int low = 0, high = 0;
  cuda_check(cudaDeviceGetStreamPriorityRange(&low, &high), "cudaDeviceGetStreamPriorityRange");
  cudaStream_t stream = nullptr;
  cuda_check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, high_priority ? high : low),
             "cudaStreamCreate");
  return Stream(stream);
}

/// Zeroed memory. The default stream zeroes it, for which no other stream waits, so this does.
inline DeviceMemory make_device_memory(int64_t bytes) {
  void* memory = nullptr;
  cuda_check(cudaMalloc(&memory, static_cast<size_t>(bytes > 0 ? bytes : 1)), "cudaMalloc");
  DeviceMemory owned(memory);
  cuda_check(cudaMemset(memory, 0, static_cast<size_t>(bytes)), "cudaMemset");
  cuda_check(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize");
  return owned;
}

/// Zeroed host memory that the device reads and writes under the same address.
inline PinnedMemory make_pinned_memory(int64_t bytes) {
  void* memory = nullptr;
  cuda_check(
      cudaHostAlloc(&memory, static_cast<size_t>(bytes > 0 ? bytes : 1), cudaHostAllocMapped | cudaHostAllocPortable),
      "cudaHostAlloc");
  std::char_traits<char>::assign(static_cast<char*>(memory), static_cast<size_t>(bytes), '\0');
  return PinnedMemory(memory);
}

}  // namespace trainctl::cuda
