#include <algorithm>
#include <memory>
#include <vector>

#include "engine/ops/cuda/launch_cuda.h"
#include "engine/ops/matmul/measure_product_cuda.h"

namespace trainctl::cuda {
namespace {

__global__ void descent_scalars(const float* rate, float* scalars) {
  wait_for_kernel_before();
  scalars[0] = -*rate;
  scalars[1] = 1.0f;
}

/// Numbers in [-1, 1) from a hash of their index: products of zeros are faster than products of data.
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
using Memory = std::unique_ptr<void, Free>;

Memory allocate(int64_t bytes) {
  void* p = nullptr;
  if (cudaMalloc(&p, static_cast<size_t>(std::max<int64_t>(bytes, 256))) != cudaSuccess) {
    (void)cudaGetLastError();
    return nullptr;
  }
  return Memory(p);
}

Memory random_numbers(int64_t n, DType type, uint32_t seed, CudaStream stream) {
  Memory memory = allocate(n * byte_size(type));
  if (memory == nullptr) return nullptr;
  with_float_type(type, [&](auto element) {
    fill<<<1024, 256, 0, stream>>>(static_cast<decltype(element)*>(memory.get()), n, seed);
  });
  cuda_check_launch("fill");
  return memory;
}

/// A stream, its timer events and copies of the operands.
class Trial {
 public:
  Trial(const Product& p, size_t workspace_bytes) : product_(p) {
    cuda_check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
    cuda_check(cudaEventCreate(&start_), "cudaEventCreate");
    cuda_check(cudaEventCreate(&end_), "cudaEventCreate");
    const auto elements = [&](int64_t matrix, int64_t step) { return matrix + (p.batch - 1) * step; };
    const int64_t a_elements = p.a_row > 0 ? p.a_row * (p.transpose_a ? p.k : p.m) : p.m * p.k;
    a_ = random_numbers(elements(a_elements, p.a_step), p.operands, 1, stream_);
    b_ = random_numbers(elements(p.k * p.n, p.b_step), p.operands, 2, stream_);
    c_ = random_numbers(elements(p.m * p.n, p.c_step), p.result, 3, stream_);
    workspace_ = allocate(static_cast<int64_t>(workspace_bytes) + 256);
    product_.a = a_.get();
    product_.b = b_.get();
    product_.c = c_.get();
    fits_ = a_ != nullptr && b_ != nullptr && c_ != nullptr && workspace_ != nullptr;
  }
  ~Trial() {
    cudaEventDestroy(start_);
    cudaEventDestroy(end_);
    cudaStreamDestroy(stream_);
  }
  Trial(const Trial&) = delete;
  Trial& operator=(const Trial&) = delete;

  float milliseconds(const TryProduct& run, const cublasLtMatmulHeuristicResult_t& candidate) {
    if (!fits_ || !once(run, candidate)) return -1;
    if (cudaStreamSynchronize(stream_) != cudaSuccess) return -1;
    // A sample has enough runs to hide the timer's resolution; the result is the median of a few samples.
    const int runs = product_.m * product_.n * product_.k > int64_t{1} << 34 ? 1 : 10;
    std::vector<float> samples(5);
    for (float& sample : samples) {
      cuda_check(cudaEventRecord(start_, stream_), "cudaEventRecord");
      for (int i = 0; i < runs; ++i)
        if (!once(run, candidate)) return -1;
      cuda_check(cudaEventRecord(end_, stream_), "cudaEventRecord");
      cuda_check(cudaEventSynchronize(end_), "a trial product");
      cuda_check(cudaEventElapsedTime(&sample, start_, end_), "cudaEventElapsedTime");
    }
    std::sort(samples.begin(), samples.end());
    return samples[samples.size() / 2];
  }

 private:
  bool once(const TryProduct& run, const cublasLtMatmulHeuristicResult_t& candidate) {
    static const float one = 1.0f, zero = 0.0f, rate = 1e-9f;
    const void *alpha = &one, *beta = product_.accumulate ? &one : &zero;
    if (product_.descend != nullptr) {  // its factors are in device memory
      auto* const scalars = reinterpret_cast<float*>(workspace_.get());
      const float factors[2] = {-rate, one};
      if (cudaMemcpyAsync(scalars, factors, sizeof(factors), cudaMemcpyHostToDevice, stream_) != cudaSuccess)
        return false;
      alpha = scalars;
      beta = scalars + 1;
    }
    return run(product_, alpha, beta, static_cast<char*>(workspace_.get()) + 256, stream_, candidate);
  }

  Product product_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t start_ = nullptr, end_ = nullptr;
  Memory a_, b_, c_, workspace_;
  bool fits_ = false;
};

}  // namespace

void write_descent_scalars(const float* rate, float* scalars, CudaStream stream) {
  launch(descent_scalars, dim3(1), dim3(1), 0, stream, "descent_scalars", rate, scalars);
}

MeasureAlgorithm measure_on_copies(const Product& product, size_t workspace_bytes, TryProduct run) {
  auto trial = std::make_shared<std::unique_ptr<Trial>>();  // created by the first measurement
  return [=](const cublasLtMatmulHeuristicResult_t& candidate) {
    if (*trial == nullptr) *trial = std::make_unique<Trial>(product, workspace_bytes);
    return (*trial)->milliseconds(run, candidate);
  };
}

}  // namespace trainctl::cuda
