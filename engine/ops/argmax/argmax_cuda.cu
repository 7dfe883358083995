// argmax along one dim: a warp per row if the dim is innermost, else a thread per column, for coalesced reads.
#include "engine/ops/cuda/cuda_kernel.h"
#include "engine/ops/cuda/launch_cuda.h"

namespace trainctl {
namespace {

constexpr int kArgmaxThreads = 256, kArgmaxWarp = 32;

/// Returns whether (v, i) comes before (best, at): it is larger, or equal and earlier. A NaN is larger than any number.
__device__ inline bool is_before(float v, int i, float best, int at) {
  const bool larger = v > best || (isnan(v) && !isnan(best)), equal = v == best || (isnan(v) && isnan(best));
  return larger || (equal && i < at);
}

/// x [rows, n] -> y [rows]: one warp per row.
template <class T>
__global__ void __launch_bounds__(kArgmaxThreads) argmax_rows_kernel(const T* x, int32_t* y, int64_t rows, int n) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t row = static_cast<int64_t>(blockIdx.x) * (kArgmaxThreads / kArgmaxWarp) + threadIdx.x / kArgmaxWarp;
  if (row >= rows) return;
  const int lane = static_cast<int>(threadIdx.x) % kArgmaxWarp;
  // Lanes without an element repeat the last one.
  int at = min(lane, n - 1);
  float best = to_f32(x[row * n + at]);
  for (int i = lane + kArgmaxWarp; i < n; i += kArgmaxWarp) {
    const float v = to_f32(x[row * n + i]);
    if (is_before(v, i, best, at)) best = v, at = i;
  }
  for (int away = kArgmaxWarp / 2; away > 0; away /= 2) {
    const float v = __shfl_xor_sync(~0u, best, away);
    const int i = __shfl_xor_sync(~0u, at, away);
    if (is_before(v, i, best, at)) best = v, at = i;
  }
  if (lane == 0) y[row] = at;
}

template <class T>
__global__ void __launch_bounds__(kArgmaxThreads)
    argmax_columns_kernel(const T* x, int32_t* y, int64_t columns, int64_t inner, int n) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kArgmaxThreads + threadIdx.x;
  if (column >= columns) return;
  const T* const from = x + column / inner * n * inner + column % inner;
  float best = to_f32(from[0]);
  int at = 0;
  for (int i = 1; i < n; ++i) {
    const float v = to_f32(from[i * inner]);
    if (is_before(v, i, best, at)) best = v, at = i;
  }
  y[column] = at;
}

CudaKernel prepare_argmax(const CudaKernelCall& call) {
  const TensorArg &x = call.in[0], &y = call.out[0];
  if (y.size() == 0) return [](CudaStream) {};
  const auto dim = static_cast<size_t>(call.attrs.integer("dim"));
  const auto n = static_cast<int>(x.shape[dim]);
  int64_t inner = 1;
  for (size_t d = dim + 1; d < x.shape.size(); ++d) inner *= x.shape[d];
  const int64_t columns = x.size() / n;
  return with_any_float_type(x.dtype, [&](auto t) {
    using T = decltype(t);
    return CudaKernel([=, from = static_cast<const T*>(x.as<T>()), to = y.as<int32_t>()](CudaStream stream) {
      if (inner == 1) {
        const auto blocks = static_cast<unsigned>(ceil_div(columns, kArgmaxThreads / kArgmaxWarp));
        launch(argmax_rows_kernel<T>, blocks, kArgmaxThreads, 0, stream, "argmax", from, to, columns, n);
        return;
      }
      const auto blocks = static_cast<unsigned>(ceil_div(columns, kArgmaxThreads));
      launch(argmax_columns_kernel<T>, blocks, kArgmaxThreads, 0, stream, "argmax", from, to, columns, inner, n);
    });
  });
}

}  // namespace

extern const CudaKernels argmax_cuda = {{"argmax", prepare_argmax, kTakesF16}};

}  // namespace trainctl
