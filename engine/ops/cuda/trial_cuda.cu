// Trial runs of kernels on memory of their own, which measure how long they take.
#include <algorithm>

#include "engine/base/mix_bits.h"
#include "engine/ops/cuda/launch_cuda.h"
#include "engine/ops/cuda/trial_cuda.h"

namespace trainctl::cuda {
namespace {

constexpr int kMostBlocks = 1024, kThreads = 256;

unsigned blocks_for(int64_t n) {
  return static_cast<unsigned>(std::clamp<int64_t>(ceil_div(n, kThreads), 1, kMostBlocks));
}

__device__ uint32_t random_word(int64_t i, uint32_t seed) {
  uint32_t x = static_cast<uint32_t>(i) * 2654435761u ^ seed;
  x ^= x >> 16u;
  x *= 0x7feb352du;
  x ^= x >> 15u;
  x *= 0x846ca68bu;
  return x ^ x >> 16u;
}

/// Numbers in [-1, 1) from a hash of their index.
template <class T>
__global__ void fill(T* data, int64_t n, uint32_t seed) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < n; i += int64_t{gridDim.x} * blockDim.x)
    data[i] = from_f32<T>(static_cast<float>(random_word(i, seed) >> 8u) * 0x1p-23f - 1.0f);
}

/// Numbers of 8 bits without the highest bit of their exponent: of magnitudes below 2, as E4M3 and as E5M2.
__global__ void fill_8_bits(uint8_t* data, int64_t n, uint32_t seed) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < n; i += int64_t{gridDim.x} * blockDim.x)
    data[i] = static_cast<uint8_t>(random_word(i, seed) >> 24u) & 0xbfu;
}

/// Each block's part of the sum of all pairs of bytes, mixed with their indices.
__global__ void digest(const uint16_t* data, int64_t n, uint64_t* parts) {
  __shared__ uint64_t of_thread[kThreads];
  uint64_t sum = 0;
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < n; i += int64_t{gridDim.x} * kThreads)
    sum += mix_bits((static_cast<uint64_t>(i) << 16u | data[i]) + 0x9e3779b97f4a7c15U);
  of_thread[threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int i = 1; i < kThreads; ++i) sum += of_thread[i];
  parts[blockIdx.x] = sum;
}

struct Free {
  void operator()(void* p) const { cudaFree(p); }
};

}  // namespace

struct Trial::Device {
  cudaStream_t stream = nullptr;
  cudaEvent_t start = nullptr, end = nullptr;
  std::vector<std::unique_ptr<void, Free>> memory;
  /// Fills an operand with the numbers of a seed.
  std::vector<std::function<void(cudaStream_t, uint32_t seed)>> fills;
  void* digests = nullptr;  ///< a part of each block
  bool has_failed = false;

  void add(std::function<void(cudaStream_t, uint32_t seed)> fill) {
    fills.push_back(std::move(fill));
    fills.back()(stream, static_cast<uint32_t>(fills.size()));
    cuda_check_launch("fill");
  }
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
  device_->add([=](cudaStream_t stream, uint32_t seed) {
    with_any_float_type(type, [&](auto element) {
      fill<<<blocks_for(n), kThreads, 0, stream>>>(static_cast<decltype(element)*>(data), n, seed);
    });
  });
  return data;
}

void* Trial::numbers_of_8_bits(int64_t n) {
  void* const data = memory(n);
  if (data == nullptr) return nullptr;
  device_->add([=](cudaStream_t stream, uint32_t seed) {
    fill_8_bits<<<blocks_for(n), kThreads, 0, stream>>>(static_cast<uint8_t*>(data), n, seed);
  });
  return data;
}

void Trial::refill(uint32_t round) {
  constexpr uint32_t kMostOperands = 256;
  uint32_t seed = round * kMostOperands;
  for (const auto& fill : device_->fills) fill(device_->stream, ++seed);
  cuda_check_launch("fill");
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

std::optional<uint64_t> Trial::bits(const Once& once, std::span<const Range> results) {
  void*& parts = device_->digests;
  if (parts == nullptr) parts = memory(kMostBlocks * static_cast<int64_t>(sizeof(uint64_t)));
  if (device_->has_failed || !once(device_->stream)) return std::nullopt;
  uint64_t sum = 0;
  for (const Range& range : results) {
    const int64_t pairs = range.bytes / 2;
    std::vector<uint64_t> of_blocks(blocks_for(pairs));
    digest<<<blocks_for(pairs), kThreads, 0, device_->stream>>>(static_cast<const uint16_t*>(range.data), pairs,
                                                                static_cast<uint64_t*>(parts));
    cuda_check_launch("digest");
    cuda_check(cudaMemcpyAsync(of_blocks.data(), parts, of_blocks.size() * sizeof(uint64_t), cudaMemcpyDeviceToHost,
                               device_->stream),
               "the digest of a trial");
    if (cudaStreamSynchronize(device_->stream) != cudaSuccess) return std::nullopt;
    sum = mix_bits(sum);
    for (const uint64_t part : of_blocks) sum += part;
  }
  return sum;
}

}  // namespace trainctl::cuda
