// Products of up to 4 rows with a weight [n, k] in bf16, as text generation computes them for each token. Their time is
// that of reading the weight once.
//   block   8 warps
//   warp    2 columns of C, which are rows of the weight; all rows of A, which stay in the first-level cache
//   lane    8 terms at a time, 256 apart; 4 times 2 loads of the weight are in flight
// Lanes are added in a fixed order, so the same operands give the same bits.
#include "engine/ops/cuda/vector_cuda.cuh"
#include "engine/ops/matmul/few_rows_cuda.h"
#include "engine/ops/small_step/finish_cuda.h"

namespace trainctl::cuda {
namespace {

constexpr int kRowWarps = 8, kRowThreads = 32 * kRowWarps;
constexpr int kColumnsOfWarp = 2, kLaneTerms = 8, kTogether = 4;
constexpr int kTermsOfStep = 32 * kLaneTerms;

struct FewRows {
  const bf16 *a = nullptr, *b = nullptr;
  Ref<Mixed> c, bias, residual;
  int m = 0, n = 0, k = 0;
};

/// Asks for the weight's rows before the preceding kernel has ended. The second-level cache also has what that kernel
/// writes, so nothing old can be read.
__device__ inline void ask_for_row(const bf16* row, int k) {
#if __CUDA_ARCH__ >= 900
  constexpr int kLine = 64;  // elements in 128 bytes
  for (int at = static_cast<int>(threadIdx.x % 32) * kLine; at < k; at += 32 * kLine)
    asm volatile("prefetch.global.L2 [%0];" ::"l"(row + at));
#endif
}

__device__ inline float add_products(const uint4& a, const uint4& b, float sum) {
  float x[8], y[8];
  eight(a, x);
  eight(b, y);
#pragma unroll
  for (int i = 0; i < 8; ++i) sum = fmaf(x[i], y[i], sum);
  return sum;
}

template <int kRows>
__global__ void __launch_bounds__(kRowThreads) few_rows_kernel(const FewRows p) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int first = (static_cast<int>(blockIdx.x) * kRowWarps + warp) * kColumnsOfWarp;
  // A warp at the end computes its last column twice, and stores it once.
  const bf16* rows[kColumnsOfWarp];
#pragma unroll
  for (int c = 0; c < kColumnsOfWarp; ++c) rows[c] = p.b + static_cast<int64_t>(min(first + c, p.n - 1)) * p.k;
  let_next_kernel_start();
  if (first < p.n)
    for (int c = 0; c < kColumnsOfWarp; ++c) ask_for_row(rows[c], p.k);
  wait_for_kernel_before();
  if (first >= p.n) return;

  float sums[kRows][kColumnsOfWarp] = {};
  for (int k0 = lane * kLaneTerms; k0 < p.k; k0 += kTogether * kTermsOfStep) {
    uint4 weights[kTogether][kColumnsOfWarp];
#pragma unroll
    for (int t = 0; t < kTogether; ++t) {
#pragma unroll
      for (int c = 0; c < kColumnsOfWarp; ++c) {
        const int k = k0 + t * kTermsOfStep;
        weights[t][c] = k < p.k ? load_16(rows[c] + k) : uint4{};
      }
    }
#pragma unroll
    for (int t = 0; t < kTogether; ++t) {
      const int k = k0 + t * kTermsOfStep;
      if (k >= p.k) break;
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const uint4 a = load_16(p.a + static_cast<int64_t>(min(r, p.m - 1)) * p.k + k);
#pragma unroll
        for (int c = 0; c < kColumnsOfWarp; ++c) sums[r][c] = add_products(a, weights[t][c], sums[r][c]);
      }
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int c = 0; c < kColumnsOfWarp; ++c) {
      float sum = sums[r][c];
#pragma unroll
      for (int apart = 16; apart > 0; apart /= 2) sum += __shfl_xor_sync(~0u, sum, apart);
      const int column = first + c;
      if (lane != 0 || r >= p.m || column >= p.n) continue;
      const int64_t at = static_cast<int64_t>(r) * p.n + column;
      if (p.bias.p != nullptr) sum += value(p.bias, column);
      if (p.residual.p != nullptr) sum += value(p.residual, at);
      set(p.c, at, sum);
    }
  }
}

Ref<Mixed> mixed(const void* p, DType type) { return {const_cast<void*>(p), type == DType::bf16}; }

template <int kRows>
CudaKernel prepare_rows(const FewRows& p) {
  const auto blocks = static_cast<unsigned>(ceil_div(p.n, kRowWarps * kColumnsOfWarp));
  return [=](CudaStream stream) {
    launch(few_rows_kernel<kRows>, dim3(blocks), dim3(kRowThreads), 0, stream, "few_rows", p);
  };
}

}  // namespace

std::optional<CudaKernel> prepare_few_rows(const Product& p) {
  constexpr int64_t kMost = int64_t{1} << 30;
  const bool is_form = p.operands == DType::bf16 && p.transpose_b && !p.transpose_a && p.batch == 1 && p.a_row == 0;
  const bool is_plain = !p.accumulate && p.descend == nullptr && p.a_sums == nullptr && p.b_sums == nullptr &&
                        p.activation == Activation::none && p.slope == Activation::none && p.before == nullptr;
  if (!is_form || !is_plain || p.m < 1 || p.m > 4 || p.n < 1 || p.n > kMost || p.k < 1 || p.k > kMost)
    return std::nullopt;
  if (p.k % kLaneTerms != 0 || !is_aligned(p.a) || !is_aligned(p.b)) return std::nullopt;
  FewRows rows;
  rows.a = static_cast<const bf16*>(p.a), rows.b = static_cast<const bf16*>(p.b);
  rows.c = mixed(p.c, p.result), rows.bias = mixed(p.bias, p.bias_type), rows.residual = mixed(p.residual, p.result);
  rows.m = static_cast<int>(p.m), rows.n = static_cast<int>(p.n), rows.k = static_cast<int>(p.k);
  if (p.m == 1) return prepare_rows<1>(rows);
  return p.m == 2 ? prepare_rows<2>(rows) : prepare_rows<4>(rows);
}

}  // namespace trainctl::cuda
