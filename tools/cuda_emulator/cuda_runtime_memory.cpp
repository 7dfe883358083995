// The stand-in for the CUDA runtime: memory, streams, events and graphs.
#include <chrono>
#include <cstring>
#include <utility>

#include "tools/cuda_emulator/device_limits.h"
#include "tools/cuda_emulator/global_memory.h"
#include "tools/cuda_emulator/runtime_state.h"

namespace trainctl::emulator {
namespace {

using Time = std::chrono::steady_clock::time_point;

bool known_range(const void* memory, size_t bytes) {
  const auto address = reinterpret_cast<uint64_t>(memory);
  const Allocation* a = global_memory().find(address);
  return a != nullptr && (bytes == 0 || a->holds(address, bytes));
}

cudaError_t copy(void* to, const void* from, size_t bytes) {
  const std::lock_guard lock(runtime().mutex);
  settle();
  if (bytes == 0) return outcome();
  Allocation* target = global_memory().find(reinterpret_cast<uint64_t>(to));
  Allocation* source = global_memory().find(reinterpret_cast<uint64_t>(from));
  if ((target != nullptr && !known_range(to, bytes)) || (source != nullptr && !known_range(from, bytes)))
    return outcome(cudaErrorInvalidValue);
  std::memmove(to, from, bytes);
  if (target != nullptr && target->written != nullptr) {
    uint8_t* written = target->written.get() + (reinterpret_cast<uint64_t>(to) - target->first);
    if (source != nullptr && source->written != nullptr)
      std::memmove(written, source->written.get() + (reinterpret_cast<uint64_t>(from) - source->first), bytes);
    else
      std::memset(written, 1, bytes);
  }
  return outcome();
}

/// Tests poison memory with 0xff, which nothing may read, so it counts as unwritten.
cudaError_t set(void* to, int value, size_t bytes) {
  const std::lock_guard lock(runtime().mutex);
  settle();
  if (bytes == 0) return outcome();
  if (!known_range(to, bytes)) return outcome(cudaErrorInvalidValue);
  std::memset(to, value, bytes);
  Allocation* target = global_memory().find(reinterpret_cast<uint64_t>(to));
  if (target->written != nullptr)
    std::memset(target->written.get() + (reinterpret_cast<uint64_t>(to) - target->first), value == 0xff ? 0 : 1, bytes);
  return outcome();
}

cudaError_t synchronize() {
  settle();
  return outcome();
}

}  // namespace
}  // namespace trainctl::emulator

using namespace trainctl::emulator;

extern "C" {

// Memory.
cudaError_t cudaMalloc(void** to, size_t bytes) {
  const std::lock_guard lock(runtime().mutex);
  *to = bytes == 0 ? nullptr : global_memory().allocate(bytes);
  return cudaSuccess;
}
cudaError_t cudaFree(void* memory) {
  const std::lock_guard lock(runtime().mutex);
  settle();
  if (memory == nullptr) return cudaSuccess;
  return global_memory().free(memory) ? cudaSuccess : outcome(cudaErrorInvalidValue);
}
cudaError_t cudaHostAlloc(void** to, size_t bytes, unsigned) {
  const std::lock_guard lock(runtime().mutex);
  *to = global_memory().allocate(bytes, true);
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* memory) { return cudaFree(memory); }
cudaError_t cudaHostRegister(void*, size_t, unsigned) { return cudaSuccess; }
cudaError_t cudaHostUnregister(void*) { return cudaSuccess; }
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) { return copy(to, from, bytes); }
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t) {
  submit([=] { copy(to, from, bytes); });
  return outcome();
}
cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t bytes, cudaStream_t stream) {
  return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream);
}
cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                              size_t height, cudaMemcpyKind, cudaStream_t) {
  if (width > to_pitch || width > from_pitch) return outcome(cudaErrorInvalidPitchValue);
  submit([=] {
    for (size_t row = 0; row < height; ++row)
      copy(static_cast<std::byte*>(to) + row * to_pitch, static_cast<const std::byte*>(from) + row * from_pitch, width);
  });
  return outcome();
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* to, const void*) {
  *to = {};
  to->type = cudaMemoryTypeDevice;
  return cudaSuccess;
}
cudaError_t cudaMemset(void* to, int value, size_t bytes) { return set(to, value, bytes); }
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t) {
  submit([=] { set(to, value, bytes); });
  return outcome();
}
cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* all) {
  *all = kMemory;
  *free_bytes = kMemory - std::min(kMemory, global_memory().bytes_in_use());
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() { return synchronize(); }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  return *stream = reinterpret_cast<cudaStream_t>(new int), cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
  return cudaStreamCreateWithFlags(stream, flags);
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* low, int* high) { return *low = 0, *high = -5, cudaSuccess; }
cudaError_t cudaStreamQuery(cudaStream_t) { return outcome(); }
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) {
  submit(settle);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) { return delete reinterpret_cast<int*>(stream), cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return synchronize(); }
cudaError_t cudaEventCreate(cudaEvent_t* event) {
  *event = reinterpret_cast<cudaEvent_t>(new Time);
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) { return cudaEventCreate(event); }
cudaError_t cudaEventDestroy(cudaEvent_t event) { return delete reinterpret_cast<Time*>(event), cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t) {
  submit([event] { *reinterpret_cast<Time*>(event) = std::chrono::steady_clock::now(); });
  return outcome();
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) {
  return cudaEventRecord(event, stream);
}
cudaError_t cudaEventSynchronize(cudaEvent_t) { return synchronize(); }
cudaError_t cudaEventQuery(cudaEvent_t) { return synchronize(); }
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t from, cudaEvent_t to) {
  *ms = std::chrono::duration<float, std::milli>(*reinterpret_cast<Time*>(to) - *reinterpret_cast<Time*>(from)).count();
  return cudaSuccess;
}
// Graphs record work, and run it in the order in which it was enqueued, which is one of the orders that its events
// allow.
cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode) {
  Runtime& r = runtime();
  const std::lock_guard lock(r.mutex);
  r.capturing = std::this_thread::get_id();
  r.captured.clear();
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t* graph) {
  Runtime& r = runtime();
  const std::lock_guard lock(r.mutex);
  r.capturing = {};
  *graph = reinterpret_cast<cudaGraph_t>(new std::vector<Work>(std::exchange(r.captured, {})));
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* to, cudaGraph_t graph, unsigned long long) {
  *to = reinterpret_cast<cudaGraphExec_t>(new std::vector<Work>(*reinterpret_cast<std::vector<Work>*>(graph)));
  return cudaSuccess;
}
cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t) {
  for (const Work& work : *reinterpret_cast<std::vector<Work>*>(graph)) submit(work);
  return outcome();
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  return delete reinterpret_cast<std::vector<Work>*>(graph), cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  return delete reinterpret_cast<std::vector<Work>*>(graph), cudaSuccess;
}

// There is one device, and no other process can see its memory.
cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { return outcome(cudaErrorNotSupported); }
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t*, void*) { return outcome(cudaErrorNotSupported); }
cudaError_t cudaIpcOpenMemHandle(void**, cudaIpcMemHandle_t, unsigned) { return outcome(cudaErrorNotSupported); }
cudaError_t cudaIpcCloseMemHandle(void*) { return outcome(cudaErrorNotSupported); }

}  // extern "C"
