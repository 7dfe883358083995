// Device work around cuBLASLt's products: factors in device memory, and trial runs on copies of the operands.
#include <memory>

#include "engine/ops/cuda/launch_cuda.h"
#include "engine/ops/cuda/trial_cuda.h"
#include "engine/ops/matmul/measure_product_cuda.h"

namespace trainctl::cuda {
namespace {

__global__ void descent_scalars(const float* rate, float* scalars) {
  wait_for_kernel_before();
  scalars[0] = -*rate;
  scalars[1] = 1.0f;
}

/// Copies of the operands.
class ProductTrial {
 public:
  ProductTrial(const Product& p, size_t workspace_bytes) : product_(p) {
    const auto elements = [&](int64_t matrix, int64_t step) { return matrix + (p.batch - 1) * step; };
    const int64_t a_elements = p.a_row > 0 ? p.a_row * (p.transpose_a ? p.k : p.m) : p.m * p.k;
    if (p.is_fp8()) {  // bytes of bf16 numbers; their scales are read where they are
      product_.a = trial_.numbers(a_elements / 2, DType::bf16);
      product_.b = trial_.numbers(p.k * p.n / 2, DType::bf16);
    } else {
      product_.a = trial_.numbers(elements(a_elements, p.a_step), p.operands);
      product_.b = trial_.numbers(elements(p.k * p.n, p.b_step), p.operands);
    }
    product_.c = trial_.numbers(elements(p.m * p.n, p.c_step), p.result);
    if (p.residual != nullptr) product_.residual = trial_.numbers(elements(p.m * p.n, p.c_step), p.result);
    workspace_ = trial_.memory(static_cast<int64_t>(workspace_bytes) + 256);
  }

  float milliseconds(const TryProduct& run, const cublasLtMatmulAlgo_t& candidate) {
    // Enough runs to hide the timer's resolution.
    const int runs = product_.m * product_.n * product_.k > int64_t{1} << 34 ? 1 : 10;
    return trial_.milliseconds([&](CudaStream stream) { return once(run, candidate, stream); }, runs);
  }

 private:
  bool once(const TryProduct& run, const cublasLtMatmulAlgo_t& candidate, CudaStream stream) {
    static const float one = 1.0f, zero = 0.0f, rate = 1e-9f;
    const void *alpha = &one, *beta = product_.accumulate || product_.residual != nullptr ? &one : &zero;
    if (product_.descend != nullptr) {  // its factors are in device memory
      auto* const scalars = static_cast<float*>(workspace_);
      const float factors[2] = {-rate, one};
      if (cudaMemcpyAsync(scalars, factors, sizeof(factors), cudaMemcpyHostToDevice, stream) != cudaSuccess)
        return false;
      alpha = scalars;
      beta = scalars + 1;
    }
    return run(product_, alpha, beta, static_cast<char*>(workspace_) + 256, stream, candidate);
  }

  Product product_;
  Trial trial_;
  void* workspace_ = nullptr;
};

}  // namespace

void write_descent_scalars(const float* rate, float* scalars, CudaStream stream) {
  launch(descent_scalars, dim3(1), dim3(1), 0, stream, "descent_scalars", rate, scalars);
}

MeasureAlgorithm measure_on_copies(const Product& product, size_t workspace_bytes, TryProduct run) {
  auto trial = std::make_shared<std::unique_ptr<ProductTrial>>();  // created by the first measurement
  return [=](const cublasLtMatmulAlgo_t& candidate) {
    if (*trial == nullptr) *trial = std::make_unique<ProductTrial>(product, workspace_bytes);
    return (*trial)->milliseconds(run, candidate);
  };
}

}  // namespace trainctl::cuda
