// Trial runs of kernels on memory of their own, which measure how long they take.
#include <algorithm>

#include "engine/ops/cuda/launch_cuda.h"
#include "engine/ops/cuda/trial_cuda.h"

namespace trainctl::cuda {
namespace {

/// Numbers in [-1, 1) from a hash of their index.
template <class T>
__global__ void fill(T* data, int64_t n, uint32_t seed) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < n; i += int64_t{gridDim.x} * blockDim.x) {
    uint32_t x = static_cast<uint32_t>(i) * 2654435761u ^ seed;
    x ^= x >> 16u;
    x *= 0x7feb352du;
    x ^= x >> 15u;
    x *= 0x846ca68bu;
    x ^= x >> 16u;
    data[i] = from_f32<T>(static_cast<float>(x >> 8u) * 0x1p-23f - 1.0f);
  }
}

struct Free {
  void operator()(void* p) const { cudaFree(p); }
};

}  // namespace

struct Trial::Device {
  cudaStream_t stream = nullptr;
  cudaEvent_t start = nullptr, end = nullptr;
  std::vector<std::unique_ptr<void, Free>> memory;
  bool has_failed = false;
};

Trial::Trial() : device_(std::make_unique<Device>()) {
  cuda_check(cudaStreamCreateWithFlags(&device_->stream, cudaStreamNonBlocking), "cudaStreamCreate");
  cuda_check(cudaEventCreate(&device_->start), "cudaEventCreate");
  cuda_check(cudaEventCreate(&device_->end), "cudaEventCreate");
}

Trial::~Trial() {
  cudaEventDestroy(device_->start);
  cudaEventDestroy(device_->end);
  cudaStreamDestroy(device_->stream);
}

void* Trial::memory(int64_t bytes) {
  void* p = nullptr;
  if (cudaMalloc(&p, static_cast<size_t>(std::max<int64_t>(bytes, 256))) != cudaSuccess) {
    (void)cudaGetLastError();
    device_->has_failed = true;
    return nullptr;
  }
  device_->memory.emplace_back(p);
  return p;
}

void* Trial::numbers(int64_t n, DType type) {
  void* const data = memory(n * byte_size(type));
  if (data == nullptr) return nullptr;
  const auto seed = static_cast<uint32_t>(device_->memory.size());
  with_any_float_type(type, [&](auto element) {
    fill<<<1024, 256, 0, device_->stream>>>(static_cast<decltype(element)*>(data), n, seed);
  });
  cuda_check_launch("fill");
  return data;
}

float Trial::milliseconds(const Once& once, int runs) {
  if (device_->has_failed || !once(device_->stream)) return -1;
  if (cudaStreamSynchronize(device_->stream) != cudaSuccess) return -1;
  std::vector<float> samples(5);
  for (float& sample : samples) {
    cuda_check(cudaEventRecord(device_->start, device_->stream), "cudaEventRecord");
    for (int i = 0; i < runs; ++i)
      if (!once(device_->stream)) return -1;
    cuda_check(cudaEventRecord(device_->end, device_->stream), "cudaEventRecord");
    cuda_check(cudaEventSynchronize(device_->end), "a trial run");
    cuda_check(cudaEventElapsedTime(&sample, device_->start, device_->end), "cudaEventElapsedTime");
  }
  std::sort(samples.begin(), samples.end());
  return samples[samples.size() / 2] / static_cast<float>(runs);
}

}  // namespace trainctl::cuda
