// Shared by the CUDA benchmarks: device memory, and timing of replays of a captured graph.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "engine/graph/dtype.h"
#include "engine/ops/cuda/cuda_kernel.h"

namespace trainctl {

inline void must(cudaError_t status, const char* what) {
  if (status != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(status));
}

class DeviceMemory {
 public:
  explicit DeviceMemory(int64_t bytes) {
    must(cudaMalloc(&data_, static_cast<size_t>(std::max<int64_t>(bytes, 16))), "cudaMalloc");
  }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  ~DeviceMemory() { cudaFree(data_); }
  std::byte* data() const { return static_cast<std::byte*>(data_); }

 private:
  void* data_ = nullptr;
};

inline float bf16_to_float(uint16_t v) {
  const uint32_t bits = uint32_t{v} << 16u;
  float f;
  static_assert(sizeof(f) == sizeof(bits));
  __builtin_memcpy(&f, &bits, sizeof(f));
  return f;
}
inline uint16_t float_to_bf16(float f) {
  uint32_t bits;
  __builtin_memcpy(&bits, &f, sizeof(f));
  return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16u & 1u)) >> 16u);
}

/// Upload rounds to the type; download returns doubles.
inline void upload(const std::vector<double>& values, DType type, void* to) {
  std::vector<std::byte> bytes(values.size() * static_cast<size_t>(byte_size(type)));
  for (size_t i = 0; i < values.size(); ++i) {
    if (type == DType::bf16) {
      reinterpret_cast<uint16_t*>(bytes.data())[i] = float_to_bf16(static_cast<float>(values[i]));
    } else {
      reinterpret_cast<float*>(bytes.data())[i] = static_cast<float>(values[i]);
    }
  }
  must(cudaMemcpy(to, bytes.data(), bytes.size(), cudaMemcpyHostToDevice), "cudaMemcpy");
}
inline std::vector<double> download(const void* from, DType type, size_t n) {
  std::vector<std::byte> bytes(n * static_cast<size_t>(byte_size(type)));
  must(cudaMemcpy(bytes.data(), from, bytes.size(), cudaMemcpyDeviceToHost), "cudaMemcpy");
  std::vector<double> values(n);
  for (size_t i = 0; i < n; ++i) {
    values[i] = type == DType::bf16 ? double{bf16_to_float(reinterpret_cast<uint16_t*>(bytes.data())[i])}
                                    : double{reinterpret_cast<float*>(bytes.data())[i]};
  }
  return values;
}

struct Microseconds {
  double median = 0, low = 0, high = 0;  ///< low, high: quartiles
};

/// Captures `copies` calls of `enqueue` in a row, and times replays: microseconds of one call.
inline Microseconds time_graph(const std::function<void(cudaStream_t)>& enqueue, int copies, int replays,
                               int samples = 21) {
  cudaStream_t stream;
  cudaEvent_t start, end;
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  must(cudaEventCreate(&start), "event");
  must(cudaEventCreate(&end), "event");
  enqueue(stream);
  must(cudaStreamSynchronize(stream), "first run");
  must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "begin capture");
  for (int i = 0; i < copies; ++i) enqueue(stream);
  must(cudaStreamEndCapture(stream, &graph), "end capture");
  must(cudaGraphInstantiate(&exec, graph, 0), "instantiate");
  for (int i = 0; i < replays; ++i) must(cudaGraphLaunch(exec, stream), "graph");
  std::vector<double> times;
  for (int s = 0; s < samples; ++s) {
    float milliseconds = 0;
    must(cudaEventRecord(start, stream), "event");
    for (int i = 0; i < replays; ++i) must(cudaGraphLaunch(exec, stream), "graph");
    must(cudaEventRecord(end, stream), "event");
    must(cudaEventSynchronize(end), "replays");
    must(cudaEventElapsedTime(&milliseconds, start, end), "time");
    times.push_back(1e3 * milliseconds / (copies * replays));
  }
  std::sort(times.begin(), times.end());
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  cudaEventDestroy(start);
  cudaEventDestroy(end);
  cudaStreamDestroy(stream);
  return {times[times.size() / 2], times[times.size() / 4], times[times.size() * 3 / 4]};
}

}  // namespace trainctl
