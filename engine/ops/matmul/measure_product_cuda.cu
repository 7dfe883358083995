// Device work around cuBLASLt's products: factors in device memory, and trial runs on copies of the operands.
#include <algorithm>

#include "engine/base/mix_bits.h"
#include "engine/base/round_up.h"
#include "engine/ops/cuda/launch_cuda.h"
#include "engine/ops/matmul/measure_product_cuda.h"
#include "engine/ops/quantise/quantised.h"

namespace trainctl::cuda {
namespace {

__global__ void descent_scalars(const float* rate, float* scalars) {
  wait_for_kernel_before();
  scalars[0] = -*rate;
  scalars[1] = 1.0f;
}

/// The number of scales of a factor of 8 bits with `lines` lines of k numbers (quantise/quantised.h).
int64_t scales_of(const Product& p, int64_t lines, bool squares) {
  if (p.tensor_scales) return 1;
  const int64_t parts = ceil_div(p.k, kScaledTogether);
  return squares ? ceil_div(lines, kScaledTogether) * round_up(parts, 4) : parts * lines;
}

}  // namespace

void write_descent_scalars(const float* rate, float* scalars, CudaStream stream) {
  launch(descent_scalars, dim3(1), dim3(1), 0, stream, "descent_scalars", rate, scalars);
}

ProductTrial::ProductTrial(const Product& p, size_t workspace_bytes) : product_(p) {
  const auto elements = [&](int64_t matrix, int64_t step) { return matrix + (p.batch - 1) * step; };
  if (p.is_fp8()) {
    product_.a = trial_.numbers_of_8_bits(p.m * p.k);
    product_.b = trial_.numbers_of_8_bits(p.k * p.n);
    product_.a_scales = static_cast<const float*>(trial_.numbers(scales_of(p, p.m, p.a_squares), DType::f32));
    product_.b_scales = static_cast<const float*>(trial_.numbers(scales_of(p, p.n, p.b_squares), DType::f32));
  } else {
    const int64_t a_elements = p.a_row > 0 ? p.a_row * (p.transpose_a ? p.k : p.m) : p.m * p.k;
    product_.a = trial_.numbers(elements(a_elements, p.a_step), p.operands);
    product_.b = trial_.numbers(elements(p.k * p.n, p.b_step), p.operands);
  }
  const int64_t of_c = elements(p.m * p.n, p.c_step), of_aux = p.batch * p.m * p.n;
  if (p.residual != nullptr) product_.residual = trial_.numbers(of_c, p.result);
  if (p.bias != nullptr) product_.bias = trial_.numbers(p.n, p.bias_type);
  if (p.slope_at != nullptr) product_.slope_at = trial_.numbers(of_aux, p.result);
  const auto result = [&](int64_t n) {
    void* const data = trial_.numbers(n, p.result);
    results_.push_back({data, n * byte_size(p.result)});
    return data;
  };
  product_.c = result(of_c);
  if (p.before != nullptr) product_.before = result(of_aux);
  if (p.a_sums != nullptr) product_.a_sums = result(p.m);
  if (p.b_sums != nullptr) product_.b_sums = result(p.n);
  workspace_ = trial_.memory(static_cast<int64_t>(workspace_bytes) + 256);
}

float ProductTrial::milliseconds(const Run& run) {
  // Enough runs to hide the timer's resolution.
  const int runs = product_.m * product_.n * product_.k > int64_t{1} << 34 ? 1 : 10;
  return trial_.milliseconds([&](CudaStream stream) { return once(run, stream); }, runs);
}

std::optional<uint64_t> ProductTrial::bits(const Run& run) {
  // Rounding to 16 bits hides the order of a sum in all but a few of 10,000 results.
  constexpr int64_t kMostRounds = 64;
  const int64_t enough = product_.result == DType::f32 ? 1 << 14 : 1 << 20;
  const int64_t rounds = std::clamp<int64_t>(enough / (product_.m * product_.n * product_.batch), 1, kMostRounds);
  uint64_t all = 0;
  for (int64_t round = 0; round < rounds; ++round) {
    trial_.refill(static_cast<uint32_t>(round));
    const auto found = trial_.bits([&](CudaStream stream) { return once(run, stream); }, results_);
    if (!found) return std::nullopt;
    all = mix_bits(all) + *found;
  }
  return all;
}

bool ProductTrial::once(const Run& run, CudaStream stream) {
  static const float one = 1.0f, zero = 0.0f;
  const void *alpha = &one, *beta = product_.accumulate || product_.residual != nullptr ? &one : &zero;
  if (product_.descend != nullptr) {
    auto* const scalars = static_cast<float*>(workspace_);
    static const float factors[2] = {-1.0f, 1.0f};
    if (cudaMemcpyAsync(scalars, factors, sizeof(factors), cudaMemcpyHostToDevice, stream) != cudaSuccess) return false;
    alpha = scalars;
    beta = scalars + 1;
  }
  return run(alpha, beta, static_cast<char*>(workspace_) + 256, stream);
}

}  // namespace trainctl::cuda
