// dora_squares: a block computes some rows of w, for each the sum over k of (w + factor * b a)^2.  dora_scale: m /
// sqrt(s).
#include "engine/ops/cuda/cuda_kernel.h"
#include "engine/ops/cuda/sums_cuda.cuh"

namespace trainctl {
namespace {

constexpr int kDoraThreads = 256;
constexpr int kDoraRows = 4;       ///< rows of a block, which share the reads of a
constexpr int kDoraMostRank = 64;  ///< ranks of b in shared memory at a time

// Kernels

/// w [rows, columns], a [rank, columns], b [rows, rank], out [rows] f32.
template <class T>
__global__ void __launch_bounds__(kDoraThreads)
    dora_squares_kernel(const T* w, const T* a, const T* b, int64_t rows, int64_t columns, int rank, float factor,
                        bool adds, float* out) {
  wait_for_kernel_before();
  let_next_kernel_start();
  __shared__ float of_b[kDoraRows][kDoraMostRank];
  const int64_t first = int64_t{blockIdx.x} * kDoraRows;
  double sums[kDoraRows] = {};
  // All threads make the same number of turns: they load b together.
  for (int64_t start = 0; start < columns; start += kDoraThreads) {
    const int64_t k = start + threadIdx.x;
    float products[kDoraRows] = {};
    for (int begin = 0; begin < rank; begin += kDoraMostRank) {
      const int ranks = min(rank - begin, kDoraMostRank);
      __syncthreads();
      for (int i = static_cast<int>(threadIdx.x); i < kDoraRows * ranks; i += kDoraThreads) {
        const int64_t row = first + i / ranks;
        of_b[i / ranks][i % ranks] = row < rows ? to_f32(b[row * rank + begin + i % ranks]) : 0.0f;
      }
      __syncthreads();
      for (int r = 0; k < columns && r < ranks; ++r) {
        const float of_a = to_f32(a[(begin + r) * columns + k]);
#pragma unroll
        for (int i = 0; i < kDoraRows; ++i) products[i] += of_b[i][r] * of_a;
      }
    }
#pragma unroll
    for (int i = 0; i < kDoraRows; ++i) {
      if (k >= columns || first + i >= rows) continue;
      const float v = to_f32(w[(first + i) * columns + k]) + factor * products[i];
      sums[i] += v * v;
    }
  }
  for (int i = 0; i < kDoraRows; ++i) {
    const double sum = sum_of_group(sums[i], kDoraThreads);
    if (threadIdx.x == 0 && first + i < rows)
      out[first + i] = static_cast<float>(sum + (adds ? static_cast<double>(out[first + i]) : 0.0));
  }
}

template <class M, class Y>
__global__ void __launch_bounds__(kDoraThreads) dora_scale_kernel(const M* m, const float* s, int64_t all, Y* y) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t i = int64_t{blockIdx.x} * kDoraThreads + threadIdx.x;
  if (i < all) y[i] = from_f32<Y>(to_f32(m[i]) / sqrtf(s[i]));
}

// Launchers

CudaKernel prepare_dora_squares(const CudaKernelCall& call) {
  const int64_t rows = call.in[0].shape[0], columns = call.in[0].shape[1];
  if (rows == 0) return [](CudaStream) {};
  return with_float_type(call.in[0].dtype, [&](auto t) {
    using T = decltype(t);
    return CudaKernel([=, w = call.in[0].as<T>(), a = call.in[1].as<T>(), b = call.in[2].as<T>(),
                       rank = static_cast<int>(call.in[1].shape[0]), out = call.out[0].as<float>(),
                       adds = call.out[0].accumulate,
                       factor = static_cast<float>(call.attrs.number("factor", 1.0))](CudaStream stream) {
      launch(dora_squares_kernel<T>, static_cast<unsigned>(ceil_div(rows, kDoraRows)), kDoraThreads, 0, stream,
             "dora_squares", w, a, b, rows, columns, rank, factor, adds, out);
    });
  });
}

CudaKernel prepare_dora_scale(const CudaKernelCall& call) {
  const int64_t all = call.out[0].size();
  if (all == 0) return [](CudaStream) {};
  return with_float_type(call.in[0].dtype, [&](auto of_m) {
    using M = decltype(of_m);
    return with_float_type(call.out[0].dtype, [&](auto of_y) {
      using Y = decltype(of_y);
      return CudaKernel(
          [=, m = call.in[0].as<M>(), s = call.in[1].as<float>(), y = call.out[0].as<Y>()](CudaStream stream) {
            launch(dora_scale_kernel<M, Y>, static_cast<unsigned>(ceil_div(all, kDoraThreads)), kDoraThreads, 0, stream,
                   "dora_scale", m, s, all, y);
          });
    });
  });
}

}  // namespace

extern const CudaKernels dora_cuda = {{"dora_squares", prepare_dora_squares}, {"dora_scale", prepare_dora_scale}};

}  // namespace trainctl
